"""Strangers who want the loop or the memory for themselves: what others get meanwhile from a real broker."""

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import encode_frame
from tests.security.attacker import Attacker, attacking, resident_bytes
from tests.support.serving import Server, serving

MIB = 1 << 20
SETTINGS = (
    "--set=server.max_held=64MiB",
    "--set=server.max_connections_per_address=60",
    "--set=server.max_connections=1000",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("held"), *SETTINGS) as server:
        yield server


def send_fields(topic: str) -> dict[str, str]:
    return {
        "a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1800000000000", "h": "0", "i": "",
        "j": "0", "k": "false", "m": "false",
    }  # fmt: skip


def make_wide(client: Attacker, topic: str, queues: int) -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    assert client.call(Request.UPDATE_AND_CREATE_TOPIC, fields).code == Response.SUCCESS


def test_another_client_is_served_between_the_requests_of_one_read(server: Server) -> None:
    with attacking(server.port) as plain, attacking(server.port) as attacker:
        make_wide(attacker, "wide", 1_000)
        assert plain.call(Request.SEND_MESSAGE_V2, send_fields("plain"), b"x").code == Response.SUCCESS
        count = 300  # with 1,000 queues each: seconds of work in 30 KiB
        attacker.push(b"".join(attacker.request(Request.GET_TOPIC_STATS_INFO, {"topic": "wide"}) for _ in range(count)))
        attacker.receive()
        answered_at = []
        for _ in range(20):
            assert plain.call(Request.SEND_MESSAGE_V2, send_fields("plain"), b"x").code == Response.SUCCESS
            answered_at.append(time.monotonic())
        for _ in range(count - 1):
            assert attacker.receive().code == Response.SUCCESS
        assert answered_at[-1] < time.monotonic(), "the plain sends were served while the attack ran"
        busy_s = time.monotonic() - answered_at[0]
        between_s = answered_at[-1] - answered_at[0]
        assert between_s < busy_s / 2


def test_unfinished_frames_of_many_connections_stay_within_the_bound(server: Server) -> None:
    pid = server.broker_pid()
    before = resident_bytes(pid)
    frame = encode_frame(Request.SEND_MESSAGE_V2, 1, fields=send_fields("big"), body=bytes(8 * MIB))[:-1]
    with ExitStack() as stack:
        crowd = [stack.enter_context(attacking(server.port)) for _ in range(40)]  # 320 MiB in all
        for attacker in crowd:
            attacker.push(frame)
        refused = [attacker for attacker in crowd[:5] if attacker.receive().code == Response.SYSTEM_BUSY]
        assert refused, "those who held most were told"
        with attacking(server.port) as plain:
            assert plain.call(Request.SEND_MESSAGE_V2, send_fields("plain"), b"x").code == Response.SUCCESS
        grown = resident_bytes(pid) - before
        assert grown < 160 * MIB, f"{grown / MIB:.0f} MiB for a bound of 64"
    assert re.search(r"connections hold too many bytes.*server\.max_held", server.log())


def pull_request(opaque: int) -> bytes:
    fields = {
        "consumerGroup": "readers", "topic": "backlog", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    return encode_frame(Request.PULL_MESSAGE, opaque, fields=fields)


def test_consumers_that_read_slowly_wait_instead_of_being_cut_off(server: Server) -> None:
    pid = server.broker_pid()
    let_go = server.log().count("connections hold too many bytes")
    with ExitStack() as stack:
        plain = stack.enter_context(attacking(server.port))
        for _ in range(6):
            assert plain.call(Request.SEND_MESSAGE_V2, send_fields("backlog"), bytes(40_000)).code == Response.SUCCESS
        before = resident_bytes(pid)
        crowd = [stack.enter_context(attacking(server.port, receive_buffer_bytes=65_536)) for _ in range(40)]
        for consumer in crowd:  # 12 MiB each, 480 in all: a third fits the kernel's buffers, a tenth the bound
            consumer.push(b"".join(pull_request(opaque) for opaque in range(50)))
        for _ in range(3):
            for consumer in crowd:
                assert consumer.receive().code == Response.SUCCESS
            time.sleep(0.2)
        grown = resident_bytes(pid) - before
        assert grown < 160 * MIB, f"{grown / MIB:.0f} MiB for a bound of 64"
        for opaque in range(3, 50):
            assert crowd[0].receive().opaque == opaque, "whoever reads on gets all of it"
    assert server.log().count("connections hold too many bytes") == let_go


def test_one_address_cannot_take_all_connections(server: Server) -> None:
    with ExitStack() as stack:
        crowd = [stack.enter_context(attacking(server.port)) for _ in range(80)]
        closed = 0
        for attacker in crowd:
            try:
                attacker.push(attacker.request(Request.GET_BROKER_RUNTIME_INFO))
                attacker.receive()
            except ConnectionError:
                closed += 1
        assert closed >= 20
    assert "connections refused" in server.log()


def test_a_body_that_would_take_long_to_decode_is_refused(server: Server) -> None:
    with attacking(server.port) as attacker:
        body = b'{"consumerGroup":"g","clientId":"c","mqSet":[' + b"{}," * 500_000
        reply = attacker.call(Request.LOCK_BATCH_MQ, body=body)
        assert "server.max_body" in str(reply.remark)


def test_a_header_that_would_take_long_to_decode_costs_the_connection(server: Server) -> None:
    with attacking(server.port) as attacker:
        header = b'{"code":1,"extFields":{' + b'"k":"v",' * 60_000 + b'"k":"v"}}'
        attacker.push((4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
        with pytest.raises(ConnectionError):
            attacker.receive()
