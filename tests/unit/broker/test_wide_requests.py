"""Requests about thousands of queues, groups or members: how much of each is done before others have their turn."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig, Config
from latermq.errors import Busy, GroupNotFound, LaterMQError
from latermq.message.batch import BatchMember, encode_batch
from latermq.message.ids import pack_host
from latermq.model.topic import Topic
from latermq.protocol.remoting import json_body
from latermq.protocol.remoting.clients import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    ProducerData,
    SubscriptionData,
    read_heartbeat,
)
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command, FrameReader, encode_frame, encode_response
from latermq.protocol.remoting.json_body import decode_body, decode_keyed_map, encode_body, raw_fields
from latermq.protocol.remoting.queues import MessageQueue
from latermq.server.broker.composition import admin_requests, broker_service
from latermq.server.handlers.admin import keyed_maps
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.sliced_requests import SLICE_STEPS, SlicedRequests
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.stores import SMALL

WIDE = 2_000
# What a slice may touch: a step touches one queue, or encodes a few.
MOST_A_SLICE = SLICE_STEPS * keyed_maps.ENTRIES_PER_STEP + 50


class Scene:
    """A broker with one wide topic that a group with many offsets reads; it counts what is touched between turns."""

    is_paused = False
    peer_host = b""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = SimulatedClock()
        config = Config(store=SMALL, broker=BrokerConfig(max_topic_queues=WIDE))
        self.broker = Broker(config, MemoryDisk(), self.clock, host="127.0.0.1", port=10911, new_store_id="s" * 32)
        self.put_off: list[Callable[[], None]] = []
        sliced = SlicedRequests(1_000, lambda work: self.put_off.append(work))
        monkeypatch.setattr(self.broker.tables, "savers", list)  # how tables are saved is another subject
        admin = admin_requests(self.broker, address="a:1", program_version="1", sliced=sliced)
        self.table = broker_service(self.broker, sliced=sliced).table
        self.table.add(admin.endpoints)
        self.broker.topics.put(Topic(name="wide", read_queues=WIDE, write_queues=WIDE))
        self.broker.groups.require("readers")
        self.broker.groups.require("others")
        self.broker.offsets.put_all("readers", "wide", dict.fromkeys(range(WIDE), 0))
        self.sent: list[Command] = []
        self.touched = 0
        find_queue = self.broker.store.queues.find
        encode_entry = json_body.encode_entry

        def counted_find(topic: str, queue_id: int) -> Any:
            self.touched += 1
            return find_queue(topic, queue_id)

        def counted_encode(key: Any, value: Any) -> bytes:
            self.touched += 1
            return encode_entry(key, value)

        monkeypatch.setattr(self.broker.store.queues, "find", counted_find)
        monkeypatch.setattr(keyed_maps, "encode_entry", counted_encode)
        # It adds up a number of each queue, which takes a hundredth of what the rest does.
        monkeypatch.setattr(
            self.broker.topic_traffic, "stored", lambda *of: self.broker.topic_traffic.pulled("", "", 0)
        )

    peer_name = "127.0.0.1:5555"
    is_closing = False

    def call(self, code: int, *, timeout_s: float, **asked: object) -> "asyncio.Future[Command]":
        raise AssertionError("who is paused is asked nothing")

    def send(self, frame: bytes) -> None:
        self.sent += FrameReader().feed(frame)

    def begin_work(self) -> None: ...

    def end_work(self) -> None: ...

    def refuse(self, command: Command, error: Exception) -> bytes:
        assert isinstance(error, LaterMQError)
        return encode_response(command, error.code, remark=error.remark)

    def begin(self, code: int, fields: dict[str, object] | None = None, body: bytes = b"") -> bytes | None:
        texts = {name: str(value) for name, value in (fields or {}).items()}
        [command] = FrameReader().feed(encode_frame(code, 7, fields=texts, body=body))
        return self.table.serve(cast(Connection, self), command)

    def turns(self) -> Iterator[int]:
        """What each turn touched."""
        while self.put_off:
            self.touched = 0
            self.put_off.pop(0)()
            yield self.touched

    def answer(self, code: int, fields: dict[str, object] | None = None, body: bytes = b"") -> tuple[Command, int]:
        """The answer, and what the busiest turn touched."""
        self.touched = 0
        reply = self.begin(code, fields, body)
        if reply is not None:
            self.send(reply)
        most = max([self.touched, *self.turns()])
        [answer] = self.sent
        return answer, most

    def disconnect(self, reason: str) -> None:
        raise AssertionError(reason)

    def connect(self, client_id: str) -> None:
        wants = SubscriptionData(topic="wide", subVersion=1)
        consumer = ConsumerData(groupName="crowd", subscriptionDataSet=[wants])
        beat = HeartbeatData(clientID=client_id)
        beat.consumerDataSet.append(consumer)
        beat.producerDataSet.append(ProducerData(groupName="makers"))
        self.broker.members.heartbeat(self, read_heartbeat(beat), language="JAVA", version=513, clock=self.clock)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    scene = Scene(monkeypatch)
    yield scene
    scene.broker.timers.engine.close()


RESET = {"topic": "wide", "group": "readers", "timestamp": 5, "isForce": "true"}
ASKED: dict[int, dict[str, object]] = {
    Request.GET_TOPIC_STATS_INFO: {"topic": "wide"},
    Request.GET_CONSUME_STATS: {"consumerGroup": "readers", "topic": "wide"},
    Request.GET_BROKER_CONSUME_STATS: {"isOrder": "false"},
    Request.QUERY_CONSUME_TIME_SPAN: {"group": "readers", "topic": "wide"},
    Request.QUERY_CORRECTION_OFFSET: {"topic": "wide", "compareGroup": "others", "filterGroups": ""},
    Request.INVOKE_BROKER_TO_RESET_OFFSET: RESET,
}


@pytest.mark.parametrize("code", ASKED)
def test_a_request_about_a_wide_topic_is_done_in_slices(scene: Scene, code: int) -> None:
    answer, most = scene.answer(code, ASKED[code])
    assert answer.code == Response.SUCCESS
    assert most <= MOST_A_SLICE
    assert scene.touched or most, "nothing was counted"


def test_all_queues_are_in_an_answer_that_took_slices(scene: Scene) -> None:
    answer, _ = scene.answer(Request.GET_TOPIC_STATS_INFO, {"topic": "wide"})
    table = decode_keyed_map(raw_fields(answer.body)["offsetTable"])
    assert [key["queueId"] for key, _ in table] == list(range(WIDE))


def test_locks_of_many_queues_are_taken_in_slices(scene: Scene) -> None:
    queues = [MessageQueue("wide", "broker-a", queue_id % WIDE) for queue_id in range(8_000)]
    body = encode_body(LockBatchRequest(consumerGroup="readers", clientId="c", mqSet=queues))
    assert scene.begin(Request.LOCK_BATCH_MQ, body=body) is None
    locked = scene.broker.locks.statistics()["queue_locks"]
    assert locked < WIDE or len(scene.put_off) == 1
    for _ in scene.turns():
        pass
    [answer] = scene.sent
    assert len(decode_body(answer.body, LockBatchResponse).lockOKMQSet) == 8_000


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (Request.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "crowd"}),
        (Request.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "makers"}),
        (Request.GET_ALL_PRODUCER_INFO, {}),
    ],
)
def test_lists_of_many_clients_are_made_in_slices(scene: Scene, code: int, fields: dict[str, object]) -> None:
    for number in range(6_000):
        scene.connect(f"client {number}")
    assert scene.begin(code, fields) is None, "six thousand take more than one slice"
    for _ in scene.turns():
        pass
    assert scene.sent[0].body.count(b"client ") == 6_000


def test_members_of_a_large_group_are_asked_in_slices(scene: Scene) -> None:
    for number in range(1_000):
        scene.connect(f"client {number}")
    scene.is_paused = True  # nobody can be asked, so each question is over at once
    fields: dict[str, object] = {"group": "crowd", "topic": "wide", "clientAddr": ""}
    assert scene.begin(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields) is None
    assert len(list(scene.turns())) >= 3
    assert len(scene.sent) == 1, "one answer for all of them"


def test_a_group_that_is_deleted_while_it_is_reset_stays_deleted(scene: Scene) -> None:
    assert scene.begin(Request.INVOKE_BROKER_TO_RESET_OFFSET, RESET) is None
    scene.broker.group_admin.delete("readers", clean_offsets=True)
    for _ in scene.turns():
        pass
    assert scene.sent[0].code == GroupNotFound.code
    assert scene.broker.offsets.of_topic("readers", "wide") == {}


def test_a_topic_that_is_made_anew_while_it_is_reset_gets_no_offsets_of_the_old_one(scene: Scene) -> None:
    for _ in range(5):
        scene.broker.writer.send("wide", 0, b"old", "", 1_800_000_000_000, pack_host("127.0.0.1", 1))
    assert scene.begin(Request.INVOKE_BROKER_TO_RESET_OFFSET, RESET | {"timestamp": -1}) is None
    for work in scene.broker.topic_admin.delete("wide"):
        work()
    scene.broker.topics.put(Topic(name="wide", read_queues=WIDE, write_queues=WIDE))
    scene.broker.writer.send("wide", 0, b"new", "", 1_800_000_000_000, pack_host("127.0.0.1", 1))
    for _ in scene.turns():
        pass
    assert scene.broker.offsets.of_topic("readers", "wide").get(0, 0) <= 1, "it would miss messages"
    assert scene.sent[0].code == Busy.code


def big_heartbeat() -> bytes:
    beat = HeartbeatData(clientID="client")
    wants = SubscriptionData(topic="wide", subString="*", expressionType="TAG")
    beat.consumerDataSet += [ConsumerData(groupName=f"g{n}", subscriptionDataSet=[wants]) for n in range(600)]
    return encode_body(beat)


def test_a_heartbeat_of_many_groups_is_taken_in_slices(scene: Scene) -> None:
    groups = scene.broker.groups.table.groups
    known = len(groups)
    assert scene.begin(Request.HEART_BEAT, body=big_heartbeat()) is None
    for _ in scene.turns():
        assert len(groups) - known <= SLICE_STEPS
        known = len(groups)
    assert [reply.code for reply in scene.sent if reply.is_response] == [Response.SUCCESS]
    assert scene.broker.members.consumer_group("g599") is not None


def test_a_heartbeat_that_takes_slices_keeps_the_language_of_its_client(scene: Scene) -> None:
    [command] = FrameReader().feed(encode_frame(Request.HEART_BEAT, 7, body=big_heartbeat()))
    command.language = "CPP"
    assert scene.table.serve(cast(Connection, scene), command) is None
    command.release()  # as the broker's service does
    for _ in scene.turns():
        pass
    group = scene.broker.members.consumer_group("g0")
    assert group is not None
    assert group.members["client"].language == "CPP"


def test_a_client_that_goes_while_its_heartbeat_is_taken_is_no_member(scene: Scene) -> None:
    assert scene.begin(Request.HEART_BEAT, body=big_heartbeat()) is None
    scene.is_closing = True
    for _ in scene.turns():
        pass
    assert scene.broker.members.consumer_group("g599") is None


def test_of_a_batch_only_odd_messages_that_may_wait_are_looked_at_closely(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = scene.broker
    looked: list[Any] = []
    marked: list[Any] = []
    admit = broker.admission.admit

    def counted(*of: Any) -> Any:
        looked.append(of)
        return admit(*of)

    monkeypatch.setattr(broker.admission, "admit", counted)
    monkeypatch.setattr(broker.waiting, "mark_ready", lambda *queue: marked.append(queue))
    plain, delayed = BatchMember(0, b"now", b"TAGS\x01a\x02"), BatchMember(0, b"later", b"DELAY\x013\x02")
    odd = BatchMember(0, b"later", b"DELAY\x0103\x02")
    broker.writer.send_batch(
        "wide", 0, encode_batch([plain, delayed, odd, *[plain] * 500]), 1_800_000_000_000, pack_host("::1", 1)
    )
    assert (len(looked), marked) == (1, [("wide", 0)])
    assert broker.reader.pull("wide", 0, 0, 1_000).messages == 501
