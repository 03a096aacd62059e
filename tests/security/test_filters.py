"""Filters that strangers write: none of them may hold the broker's loop or fill its memory."""

from collections.abc import Iterator

import msgspec
import pytest

from latermq.message.properties import encode_properties
from latermq.message.record import Message, decode_records
from latermq.protocol.remoting.clients import ConsumerData, HeartbeatData, SubscriptionData
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.json_body import encode_body
from tests.security.attacker import Attacker, attacking, cpu_s, resident_bytes
from tests.support.serving import Server, serving

TOPIC = "orders"
PARSE_FAILED = 23
SUSPEND_SUBSCRIPTION = 2 | 4
# About 2,000 words, none of which is true of what is stored here.
HEAVY = " OR ".join(f"a = 'x{number}'" for number in range(500))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture
def attacker(server: Server) -> Iterator[Attacker]:
    with attacking(server.port) as connected:
        yield connected


def store(attacker: Attacker, topic: str, properties: dict[str, str], count: int = 1) -> None:
    fields = {
        "a": "P", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
        "i": encode_properties(properties), "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    attacker.push(b"".join(attacker.request(Request.SEND_MESSAGE_V2, fields, b"body") for _ in range(count)))
    for _ in range(count):
        assert attacker.receive().code == Response.SUCCESS


def pull(
    attacker: Attacker, topic: str, offset: int, expression: str, kind: str = "SQL92", suspend_ms: int = 0
) -> Command:
    fields = {
        "consumerGroup": "g", "topic": topic, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32",
        "sysFlag": str(SUSPEND_SUBSCRIPTION), "commitOffset": "0", "suspendTimeoutMillis": str(suspend_ms),
        "subscription": expression, "subVersion": "0", "expressionType": kind,
    }  # fmt: skip
    return attacker.call(Request.PULL_MESSAGE, fields)


def next_offset(reply: Command) -> int:
    return int(reply.text_fields()["nextBeginOffset"])


def found(reply: Command) -> list[Message]:
    return list(decode_records(reply.body)) if reply.code == Response.SUCCESS else []


@pytest.mark.parametrize("tail", ["", "x", ".5", "e", " 1"])
def test_comparing_a_long_row_of_digits_takes_no_time_worth_mentioning(
    server: Server, attacker: Attacker, tail: str
) -> None:
    topic = f"digits{len(tail)}{ord(tail[-1]) if tail else 0}"
    store(attacker, topic, {"a": "1" * 6_000 + tail})
    before_s = cpu_s(server.broker_pid())
    reply = pull(attacker, topic, 0, "a > 5 OR a < 3 OR a = 4 OR a > 1.5 OR a > b")
    assert reply.code == Response.PULL_RETRY_IMMEDIATELY
    assert cpu_s(server.broker_pid()) - before_s < 0.5


def test_a_heavy_filter_is_answered_with_how_far_it_looked_and_misses_nothing(
    server: Server, attacker: Attacker
) -> None:
    store(attacker, TOPIC, {"a": "no"}, count=2_000)
    store(attacker, TOPIC, {"a": "x499"})
    store(attacker, TOPIC, {"a": "no"}, count=1_999)
    offset, looked, messages = 0, [], []
    while offset < 4_000:
        reply = pull(attacker, TOPIC, offset, HEAVY)
        assert reply.code in (Response.SUCCESS, Response.PULL_RETRY_IMMEDIATELY)
        messages += found(reply)
        looked.append(next_offset(reply) - offset)
        offset = next_offset(reply)
    assert [message.queue_offset for message in messages] == [2_000]
    # 2,000 words cost about 0.2 ms a message.
    assert max(looked) < 200, f"one pull asked the filter about {max(looked)} messages"


def test_a_pull_that_may_wait_does_not_work_through_the_queue_within_one_turn(attacker: Attacker) -> None:
    topic = "waited"
    store(attacker, topic, {"a": "no"}, count=1_000)
    reply = pull(attacker, topic, 0, HEAVY, suspend_ms=20_000)
    assert reply.code == Response.PULL_RETRY_IMMEDIATELY
    assert next_offset(reply) < 200


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
def test_expressions_as_long_as_a_header_are_refused_and_not_kept(
    server: Server, attacker: Attacker, kind: str
) -> None:
    store(attacker, "long", {"a": "1"})
    before_bytes = resident_bytes(server.broker_pid())
    for number in range(150):
        reply = pull(attacker, "long", 0, f"{number}" + "x" * 240_000, kind)
        assert reply.code == PARSE_FAILED
        assert "broker.max_expression" in str(reply.remark)
        assert len(str(reply.remark)) < 300
    assert resident_bytes(server.broker_pid()) - before_bytes < 60 << 20


def test_many_filters_within_the_bounds_stay_within_the_cache(server: Server, attacker: Attacker) -> None:
    store(attacker, "cached", {"a": "1"})
    before_bytes = resident_bytes(server.broker_pid())
    for number in range(80):
        tags = " || ".join(f"{number}-{tag}-{'x' * 400}" for tag in range(140))
        assert pull(attacker, "cached", 0, tags, "TAG").code == Response.PULL_RETRY_IMMEDIATELY
        sql = " OR ".join(f"a{number} = '{other}'" for other in range(500))
        assert pull(attacker, "cached", 0, sql).code == Response.PULL_RETRY_IMMEDIATELY
    assert resident_bytes(server.broker_pid()) - before_bytes < 60 << 20


def test_an_expression_of_too_many_words_is_refused_before_it_is_parsed(server: Server, attacker: Attacker) -> None:
    store(attacker, "words", {"a": "1"})
    before_s = cpu_s(server.broker_pid())
    for number in range(20):
        reply = pull(attacker, "words", 0, f"a={number}" + " OR a=1" * 9_000)
        assert reply.code == PARSE_FAILED
        assert "broker.max_expression_words" in str(reply.remark)
    for number in range(20):
        reply = pull(attacker, "words", 0, f"{number}" + "||1" * 15_000, "TAG")
        assert reply.code == PARSE_FAILED
        assert "broker.max_expression_words" in str(reply.remark)
    assert cpu_s(server.broker_pid()) - before_s < 2.0


@pytest.mark.parametrize(
    "told",
    [
        SubscriptionData(topic=TOPIC, subString="x" * 400_000),
        SubscriptionData(topic=TOPIC, subString="a = '" + "x" * 400_000 + "'", expressionType="SQL92"),
        SubscriptionData(topic=TOPIC, subString="x", tagsSet=["x" * 400_000]),
        SubscriptionData(topic=TOPIC, subString="x", tagsSet=["x"] * 100_000),
        SubscriptionData(topic=TOPIC, subString="x", codeSet=list(range(50_000))),
        SubscriptionData(topic=TOPIC, subString="x", expressionType="S" * 400_000),
    ],
    ids=["tags", "sql", "long tag", "many tags", "many codes", "long type"],
)
def test_a_heartbeat_with_a_subscription_beyond_the_bounds_is_refused(
    attacker: Attacker, told: SubscriptionData
) -> None:
    consumer = ConsumerData(groupName="g", subscriptionDataSet=[told])
    beat = HeartbeatData(clientID="c", consumerDataSet=[consumer])
    reply = attacker.call(Request.HEART_BEAT, body=encode_body(beat))
    assert reply.code == PARSE_FAILED
    assert "broker.max_expression" in str(reply.remark)


def test_a_client_that_asks_whether_a_long_expression_parses_is_told_no(attacker: Attacker) -> None:
    told = {"topic": TOPIC, "subString": "x" * 1_000_000, "expressionType": "TAG"}
    body = msgspec.json.encode({"clientId": "c", "group": "g", "subscriptionData": told})
    reply = attacker.call(Request.CHECK_CLIENT_CONFIG, body=body)
    assert reply.code == PARSE_FAILED
    assert "broker.max_expression" in str(reply.remark)


def test_long_tags_of_messages_are_not_kept_in_memory(server: Server, attacker: Attacker) -> None:
    before_bytes = resident_bytes(server.broker_pid())
    for number in range(1_500):
        store(attacker, "tagged", {"TAGS": f"{number:05}" + "t" * 30_000})
    assert resident_bytes(server.broker_pid()) - before_bytes < 40 << 20
