"""The pipeline's blocking connection: what it asks, what it makes of answers, and how it survives a lost broker."""

import pickle
from collections.abc import Callable

import pytest

from latermq.client.session.failures import ConnectionLost, NoBroker, NoNameServer, RequestTimedOut
from latermq.errors import CorruptStore, IllegalOperation, MalformedFrame
from latermq.message.names import TIMER_TOPIC
from latermq.model.pipeline_state import CutState, PipelineState
from latermq.pipeline.driver.brokers import QueuePlace, masters, queues_of
from latermq.pipeline.driver.link import BrokerLink, QueueRange
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_frame, encode_response
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.pipeline import PullRecordsHeader, encode_state
from latermq.protocol.remoting.routes import BrokerData, ClusterInfo, QueueData, TopicRoute
from tests.support.frame_server import DISCONNECT, frame_server

STATE = PipelineState(
    store_id="s", broker_name="broker-a", epoch=4, ingest_offset=7, min_entry=0, flushed_entry=9, now_ms=1,
    done_upto=2, done_wake_ms=3, done=[(4, 6)], cuts=[CutState(1, 5, 100, 50)],
)  # fmt: skip


def pulls_of(entries: int) -> Callable[[Command], bytes]:
    """A queue of records that are one byte each, of which at most `maxBytes` are told at once."""

    def script(request: Command) -> bytes:
        header = request.header(PullRecordsHeader)
        end = min(entries, header.untilOffset or 0, header.offset + header.maxBytes)
        fields = {"nextOffset": str(end), "minOffset": "0", "flushedOffset": str(entries)}
        return encode_response(request, fields=fields, body=bytes(range(header.offset, end)))

    return script


def test_state_and_commit_go_over_one_connection() -> None:
    with (
        frame_server(lambda request: encode_response(request, body=encode_state(STATE))) as server,
        BrokerLink(server.address) as link,
    ):
        assert link.state() == STATE
        assert link.begin("t", 8) == STATE
        link.commit_ingest(8, 4)
        link.window_ready(3, "spark-1-ab", 4)
        codes = [request.code for request in server.requests]
        signed = [Request.BEGIN_PIPELINE, Request.COMMIT_INGEST, Request.WINDOW_READY]
        assert codes == [Request.PIPELINE_STATE, Request.PIPELINE_STATE, *signed]
        told = [request.text_fields() for request in server.requests[2:]]
        assert told[0] == {"token": "t", "tableEnd": "8", "afterEpoch": str(STATE.epoch)}
        assert told[1] == {"offset": "8", "epoch": "4"}
        assert told[2] == {"number": "3", "attempt": "spark-1-ab", "epoch": "4"}


def test_a_range_is_pulled_in_pieces_and_nothing_beyond_it() -> None:
    with frame_server(pulls_of(100)) as server, BrokerLink(server.address) as link:
        pieces = list(link.pull_all(QueueRange("t", 2, 10, 55, epoch=3), max_bytes=20))
        assert pieces == [bytes(range(10, 30)), bytes(range(30, 50)), bytes(range(50, 55))]
        assert [request.text_fields()["offset"] for request in server.requests] == ["10", "30", "50"]
        assert {request.text_fields()["epoch"] for request in server.requests} == {"3"}


def test_a_reader_that_stops_half_way_does_not_disturb_the_next_request() -> None:
    with frame_server(pulls_of(100)) as server, BrokerLink(server.address) as link:
        assert next(link.pull_all(QueueRange("t", 0, 0, 100), max_bytes=5)) == bytes(range(5))
        assert link.pull(QueueRange("t", 0, 50, 52)).records == bytes([50, 51])


def test_a_queue_that_ends_too_early_is_an_error() -> None:
    with frame_server(pulls_of(30)) as server, BrokerLink(server.address) as link:
        pieces = link.pull_all(QueueRange("t", 0, 0, 40))
        assert next(pieces) == bytes(range(30))
        with pytest.raises(CorruptStore, match="has no entry 30 in queue 0 of 't': it has 0 to 30"):
            next(pieces)


def test_a_lost_connection_is_made_again_and_the_pull_goes_on() -> None:
    answer = pulls_of(100)
    calls = 0

    def script(request: Command) -> bytes:
        nonlocal calls
        calls += 1
        return DISCONNECT if calls in (1, 3, 4) else answer(request)

    with frame_server(script) as server, BrokerLink(server.address) as link:
        pieces = link.pull_all(QueueRange("t", 0, 0, 60), max_bytes=20)
        assert b"".join(pieces) == bytes(range(60))


def test_an_older_epoch_is_told_at_once() -> None:
    with (
        frame_server(lambda request: encode_response(request, 604, remark="epoch 3 is over")) as server,
        BrokerLink(server.address) as link,
    ):
        with pytest.raises(IllegalOperation, match="epoch 3 is over"):
            link.commit_ingest(8, 3)
        assert len(server.requests) == 1


def test_what_the_server_asks_or_answers_late_is_passed_over() -> None:
    def script(request: Command) -> bytes:
        asked = encode_frame(40, 1, fields={})
        late = encode_frame(0, request.opaque + 77, flag=1, fields={})
        return asked + late + encode_response(request, body=encode_state(STATE))

    with frame_server(script) as server, BrokerLink(server.address) as link:
        assert link.state() == STATE


def test_a_silent_and_a_missing_and_a_babbling_server_are_told_apart() -> None:
    with frame_server(lambda request: None) as server:
        with BrokerLink(server.address, timeout_s=0.05, patience_s=0) as link, pytest.raises(RequestTimedOut):
            link.state()
        server.script = lambda request: b"\xff" * 16
        with BrokerLink(server.address, patience_s=0) as link, pytest.raises(MalformedFrame):
            link.state()
        address = server.address
    with BrokerLink(address, patience_s=0) as link, pytest.raises(ConnectionLost):
        link.state()


def test_a_link_travels_without_its_connection() -> None:
    with frame_server(lambda request: encode_response(request, body=encode_state(STATE))) as server:
        with BrokerLink(server.address) as link:
            link.state()
            copy = pickle.loads(pickle.dumps(link))
        with copy:
            assert copy.state() == STATE


def name_server(request: Command) -> bytes:
    brokers = {
        name: BrokerData(cluster="c", brokerName=name, brokerAddrs=addresses)
        for name, addresses in {"b": {0: "b:1"}, "a": {0: "a:1", 1: "a:2"}, "slave": {1: "c:1"}}.items()
    }
    if request.code == Request.GET_BROKER_CLUSTER_INFO:
        return encode_response(request, body=encode_body(ClusterInfo(brokerAddrTable=brokers)))
    queues = [QueueData(brokerName=name, readQueueNums=2, writeQueueNums=2, perm=6) for name in ("b", "a")]
    return encode_response(request, body=encode_body(TopicRoute(queueDatas=queues, brokerDatas=list(brokers.values()))))


def test_queues_come_from_the_name_server_and_the_timer_topic_from_every_master() -> None:
    with frame_server(name_server) as server:
        assert masters(server.address) == {"a": "a:1", "b": "b:1"}
        assert queues_of(server.address, TIMER_TOPIC) == [QueuePlace("a", 0, "a:1"), QueuePlace("b", 0, "b:1")]
        assert queues_of(server.address, "orders", "b") == [QueuePlace("b", 0, "b:1"), QueuePlace("b", 1, "b:1")]
        with pytest.raises(NoBroker, match="no queue of topic 'orders' of broker 'x'"):
            queues_of(server.address, "orders", "x")
        assert len(queues_of(f"127.0.0.1:1; {server.address}", "orders")) == 4
    with pytest.raises(NoNameServer, match=r"127\.0\.0\.1:1"):
        masters("127.0.0.1:1")
