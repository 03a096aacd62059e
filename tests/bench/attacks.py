"""Latency of a normal client while attackers send expensive requests to a broker or a name server.

`ATTACKS` lists the target, the number of connections and the bytes. The attackers run in a separate process. The normal
client sends, pulls and queries a route in turn, and its slowest requests are reported.
"""

import contextlib
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from latermq.message.properties import encode_properties
from latermq.protocol.remoting.clients import ConsumerData, HeartbeatData, LockBatchRequest, SubscriptionData
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import encode_frame
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.pull import PULL_SUBSCRIPTION
from latermq.protocol.remoting.queues import MessageQueue
from tests.bench.load import Figures
from tests.security.attacker import Attacker, attacking
from tests.support.serving import serving

BROKER, NAMESRV = "broker", "namesrv"
WIDE_QUEUES = 1_000
FILLED_QUEUES = 200  # of the wide queues; each has its own file
HOT_MESSAGES = 3_000
_REST_S = 0.001  # between two normal requests
_TOPIC, _WIDE, _GROUP, _HOT = "plain", "wide", "readers", "hot"


@dataclass(frozen=True)
class Attack:
    """The bytes are sent repeatedly over each connection. Responses are read and dropped."""

    name: str
    bytes_of: Callable[[], bytes]
    on: str = BROKER
    connections: int = 4


def _many(count: int, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> Callable[[], bytes]:
    return lambda: b"".join(encode_frame(code, number, fields=fields or {}, body=body) for number in range(count))


def _send(topic: str, **properties: str) -> dict[str, str]:
    return {
        "a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1800000000000", "h": "0",
        "i": encode_properties(properties), "j": "0", "k": "false", "m": "false",
    }  # fmt: skip


def _pull(topic: str, offset: int, **overrides: str) -> dict[str, str]:
    return {
        "consumerGroup": _GROUP, "topic": topic, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32",
        "sysFlag": str(PULL_SUBSCRIPTION), "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
        "subscription": "*", "expressionType": "TAG",
    } | overrides  # fmt: skip


def _heartbeat(groups: int) -> bytes:
    heartbeat = HeartbeatData(clientID="attacker")
    for number in range(groups):
        subscription = SubscriptionData(topic=_TOPIC, subString="*", expressionType="TAG")
        heartbeat.consumerDataSet.append(ConsumerData(groupName=f"crowd-{number}", subscriptionDataSet=[subscription]))
    return encode_body(heartbeat)


def _locks(count: int) -> bytes:
    queues = [MessageQueue(_WIDE, "broker-a", number % WIDE_QUEUES) for number in range(count)]
    return encode_body(LockBatchRequest(consumerGroup=_GROUP, clientId="attacker", mqSet=queues))


_QUEUE = {"topic": _TOPIC, "queueId": "0"}
_RESET = {"topic": _WIDE, "group": _GROUP, "timestamp": "1", "isForce": "true"}
_SQL = " AND ".join(f"a{number} BETWEEN 1 AND 2" for number in range(100))
_NESTED = b'{"clientID":"c","junk":' + b"[" * 400_000 + b"]" * 400_000 + b"}"
_KEY = {"topic": _HOT, "key": "none", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
ATTACKS = (
    Attack("nothing", bytes, connections=0),
    Attack("many cheap requests in one read", _many(2_000, Request.GET_MAX_OFFSET, _QUEUE)),
    Attack("unknown request codes", _many(3_000, 9_999)),
    Attack("statistics of a wide topic", _many(200, Request.GET_TOPIC_STATS_INFO, {"topic": _WIDE})),
    Attack(
        "progress in a wide topic", _many(200, Request.GET_CONSUME_STATS, {"consumerGroup": _GROUP, "topic": _WIDE})
    ),
    Attack("resets of a wide topic", _many(50, Request.INVOKE_BROKER_TO_RESET_OFFSET, _RESET)),
    Attack("locks of many queues", _many(2, Request.LOCK_BATCH_MQ, body=_locks(10_000))),
    Attack("queries by key", _many(200, Request.QUERY_MESSAGE, _KEY | {"key": "key"})),
    Attack("SQL filters", _many(100, Request.PULL_MESSAGE, _pull(_HOT, 0, subscription=_SQL, expressionType="SQL92"))),
    Attack("long digit strings", _many(20, Request.GET_MAX_OFFSET, {"topic": _TOPIC, "queueId": "9" * 200_000})),
    Attack("heartbeats with many groups", _many(5, Request.HEART_BEAT, body=_heartbeat(900))),
    Attack("nested JSON", _many(5, Request.HEART_BEAT, body=_NESTED)),
    Attack("big frames", _many(1, Request.SEND_MESSAGE_V2, _send(_TOPIC), bytes(8 << 20))),
    Attack("lists of all topics", _many(500, Request.GET_ALL_TOPIC_CONFIG)),
    Attack("routes", _many(2_000, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": _WIDE}), on=NAMESRV),
    Attack("lists of routes", _many(2_000, Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), on=NAMESRV),
    Attack("many connections", _many(200, Request.GET_MAX_OFFSET, _QUEUE), connections=100),
)


def run_attack(attack: Attack, port: int, seconds: float) -> None:
    """Send as fast as the server reads, and read all responses."""
    data = memoryview(attack.bytes_of())
    until_s = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        sent = {
            stack.enter_context(socket.create_connection(("127.0.0.1", port))): 0 for _ in range(attack.connections)
        }
        for sock in sent:
            sock.setblocking(False)
        while sent and time.monotonic() < until_s:
            readable, writable, _ = select.select(sent, sent, [], 0.1)
            for sock in readable:
                if not sock.recv(1 << 18):
                    del sent[sock]  # disconnected
            for sock in (one for one in writable if one in sent):
                with contextlib.suppress(BlockingIOError):
                    at = sent[sock]
                    sent[sock] = (at + sock.send(data[at : at + (1 << 18)])) % len(data)


def measure_attacks(folder: Path, seconds: float, names: tuple[str, ...] = ()) -> Iterator[tuple[str, Figures]]:
    """The slowest normal requests during each attack, all on the same server."""
    with serving(folder, "--set=log.level=error") as server, attacking(server.port) as plain:
        _prepare(plain)
        for number, attack in enumerate(ATTACKS):
            if names and attack.name not in names:
                continue
            port = server.port if attack.on == BROKER else server.namesrv_port
            command = [sys.executable, "-m", "tests.bench.attacks", str(number), str(port), str(seconds)]
            with subprocess.Popen(command) as attackers, attacking(server.namesrv_port) as route_client:
                try:
                    yield attack.name, _plain_requests(plain, route_client, attackers)
                finally:
                    attackers.kill()


def _prepare(plain: Attacker) -> None:
    wide = {
        "topic": _WIDE, "defaultTopic": "TBW102", "readQueueNums": str(WIDE_QUEUES),
        "writeQueueNums": str(WIDE_QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
        "order": "false",
    }  # fmt: skip
    assert plain.call(Request.UPDATE_AND_CREATE_TOPIC, wide).code == Response.SUCCESS
    group = encode_body({"groupName": _GROUP})
    assert plain.call(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group).code == Response.SUCCESS
    sends = [_send(_HOT, KEYS="key")] * HOT_MESSAGES
    sends += [_send(_WIDE) | {"e": str(queue_id)} for queue_id in range(FILLED_QUEUES)]
    plain.push(b"".join(plain.request(Request.SEND_MESSAGE_V2, fields, b"x") for fields in sends))
    for _ in sends:
        assert plain.receive().code == Response.SUCCESS


def _plain_requests(plain: Attacker, route_client: Attacker, attackers: "subprocess.Popen[bytes]") -> Figures:
    took_ms: dict[str, list[float]] = {"send": [], "pull": [], "route": []}

    def timed(request: str, client: Attacker, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        began_s = time.monotonic()
        reply = client.call(code, fields, body)
        took_ms[request].append((time.monotonic() - began_s) * 1000)
        assert reply.code == Response.SUCCESS, f"{request}: {reply.remark}"

    while attackers.poll() is None:
        timed("send", plain, Request.SEND_MESSAGE_V2, _send(_TOPIC), b"x" * 200)
        timed("pull", plain, Request.PULL_MESSAGE, _pull(_TOPIC, 0))
        timed("route", route_client, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": _WIDE})
        time.sleep(_REST_S)
    figures: Figures = {}
    for request, times_ms in took_ms.items():
        times_ms.sort()
        figures |= {
            f"{request}, p99 (ms)": times_ms[len(times_ms) * 99 // 100],
            f"{request}, slowest (ms)": times_ms[-1],
        }
    return figures


if __name__ == "__main__":
    run_attack(ATTACKS[int(sys.argv[1])], int(sys.argv[2]), float(sys.argv[3]))
