"""Requests and brokers' replies of any content: every call is answered with a status, and nothing fails."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from latermq.client.session.failures import RequestTimedOut
from latermq.clock import SimulatedClock
from latermq.config import Config
from latermq.protocol.http2.grpc.status import GrpcError
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.remoting.queues import MessageQueue
from latermq.server.proxy.brokers.broker_link import BrokerLink
from latermq.server.proxy.brokers.topics import TopicInfo, Topics
from latermq.server.proxy.calls.ack_calls import AckBatches, AckCalls
from latermq.server.proxy.calls.call_table import SERVICE, CallEndpoint
from latermq.server.proxy.calls.held_message_calls import HeldMessageCalls
from latermq.server.proxy.calls.receive_calls import ReceiveCalls
from latermq.server.proxy.calls.returned_messages import ReturnedMessages
from latermq.server.proxy.calls.send_calls import SendCalls
from latermq.server.proxy.calls.transaction_calls import TransactionCalls
from tests.support.proxy_calls import BrokerRequest, FakeCall, FakeLink, FakeProxy
from tests.support.proxy_messages import BROKER

TEXTS = [
    "", " ", "orders", "g", BROKER, "a\x01b", "é" * 40, "x" * 300, "%RETRY%g", "rmq_sys_x", "TBW102",
    f"70 1700000000500 30000 0 0 {BROKER} 2 70 9070", f"1 1 1 999 1 {BROKER} 0 1", "9 " * 8,
    "djEgbGF0ZXIgYnJva2VyLWEgMTkwMDAwMDAwMDAwMCB1bmtub3du",
]  # fmt: skip
# Otherwise the first check would refuse nearly every request.
LIKELY: dict[str, Any] = {
    "Resource.name": "orders", "Resource.resource_namespace": "", "Broker.name": BROKER, "Message.body": b"x",
    "SystemProperties.message_id": "id", "SystemProperties.message_type": 0, "SystemProperties.message_group": "",
    "SystemProperties.tag": "", "SystemProperties.trace_context": "", "Timestamp.nanos": 5, "Duration.nanos": 0,
    "Timestamp.seconds": 1_700_000_000, "Duration.seconds": 30, "EndTransactionRequest.transaction_id": "t",
    "EndTransactionRequest.resolution": pb.COMMIT,
}  # fmt: skip
HANDLES = [text for text in TEXTS if text.startswith(("70 ", "1 1 "))]
UNSUPPORTED = ("priority", "lite_topic")
NUMBERS = [0, 1, -1, 2, 32, 10_000, 1 << 30, -(1 << 31), (1 << 31) - 1]


def filled(rng: random.Random, type_: type[Message]) -> Any:
    """A message with random fields."""
    message: Any = type_()
    for field in type_.DESCRIPTOR.fields:
        likely = LIKELY.get(f"{type_.DESCRIPTOR.name}.{field.name}")
        if field.name == "receipt_handle":
            likely = rng.choice(HANDLES)
        if rng.random() < (0.9 if field.name in UNSUPPORTED else 0.1):
            continue
        if likely is not None and rng.random() < 0.95:
            setattr(message, field.name, likely)
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(rng.choice([0, 1, 3])):
                getattr(message, field.name)[rng.choice(["a", "b", "c", *TEXTS[:8]])] = rng.choice(TEXTS[2:5])
        elif field.is_repeated:
            values = [value(rng, field) for _ in range(rng.choice([0, 1, 1, 1, 3]))]
            getattr(message, field.name).extend(values)
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(value(rng, field))
        else:
            setattr(message, field.name, value(rng, field))
    return message


def value(rng: random.Random, field: Any) -> Any:
    if field.message_type is not None:
        return filled(rng, field.message_type._concrete_class)
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice([b"", b"x", bytes(5000)])
    if field.type == FieldDescriptor.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == FieldDescriptor.TYPE_INT64:
        return rng.choice([*NUMBERS, 1 << 62, -(1 << 63), 1_700_000_000])
    if field.type == FieldDescriptor.TYPE_ENUM:
        return rng.choice([*NUMBERS[:4], 3, 4, 5, 6])
    return rng.choice(NUMBERS)


def endpoints(link: FakeLink, soon: list[Callable[[], None]]) -> list[CallEndpoint]:
    broker_link = cast(BrokerLink, link)
    queues = [MessageQueue("orders", BROKER, number) for number in range(4)]
    route = SimpleNamespace(writable=queues, readable=queues, addresses={BROKER: ""})
    info = TopicInfo("orders", cast(Any, route), "MIXED", False)
    topics = cast(Topics, SimpleNamespace(
        cached=lambda topic: info if topic == "orders" else None, get=lambda topic, then: then(info),
        refresh=lambda topic: None,
    ))  # fmt: skip
    clock = SimulatedClock()

    def later(pause_s: float, then: Callable[[], None]) -> None:
        soon.append(then)

    returned = ReturnedMessages(broker_link, Config().proxy, lambda: 0.0, later)
    receives = ReceiveCalls(broker_link, lambda *_: None, returned, Config(), clock, later)
    return [
        *SendCalls(broker_link, topics, Config(), clock).endpoints,
        *receives.endpoints,
        *AckCalls(AckBatches(broker_link, soon.append), 4_096).endpoints,
        *HeldMessageCalls(broker_link, Config().proxy.max_invisible).endpoints,
        *TransactionCalls(broker_link, topics).endpoints,
    ]


def answer_somehow(rng: random.Random, request: BrokerRequest) -> None:
    if rng.random() < 0.1:
        request.fail(RequestTimedOut("late"))
        return
    names = ["popTime", "invisibleTime", "reviveQid", "queueOffset", "msgId", "recallHandle", "startOffsetInfo"]
    fields = {name: rng.choice([*TEXTS, "1", "7"]) for name in names if rng.random() < 0.8}
    bodies = [b"", b"[]", b'["done"]', b'["stale"]', b"\0" * 200, b"{", b"[1,2]"]
    request.answer(rng.choice([0, 0, 1, 2, 13, 16, 17, 19, 26, 208, 209, 210, 604, 999]), fields, rng.choice(bodies))


METHODS = [endpoint.name for endpoint in endpoints(FakeLink(), [])]


@pytest.mark.parametrize("method", METHODS)
@given(seed=st.integers(0, 1 << 32))
def test_requests_and_replies_of_any_content_get_an_answer(method: str, seed: int) -> None:
    rng = random.Random(seed)
    link = FakeLink(BROKER)
    soon: list[Callable[[], None]] = []
    rows = endpoints(link, soon)
    endpoint = next(row for row in rows if row.name == method)
    proxy = FakeProxy(rows)
    call: FakeCall = proxy.call(method, filled(rng, endpoint.request))
    for _ in range(3):
        steps, soon[:] = list(soon), []
        for step in steps:
            step()
        for request in link.take():
            answer_somehow(rng, request)
    for step in soon:
        step()
    assert not call.is_open
    for answer in call.read(endpoint.reply):
        assert isinstance(answer, pb.ReceiveMessageResponse) or answer.status.code  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", METHODS)
@given(data=st.binary(max_size=200))
def test_requests_of_any_bytes_are_refused_or_answered(method: str, data: bytes) -> None:
    link = FakeLink(BROKER)
    proxy = FakeProxy(endpoints(link, []))
    served: Any = proxy.table.methods[f"/{SERVICE}/{method}".encode()]
    try:
        served.serve(FakeCall(), data)
    except GrpcError as error:
        assert "is not a valid" in error.message  # noqa: PT017
