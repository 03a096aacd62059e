"""Requests that are read without protobuf: the result is that of the full path, or None."""

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.plain_messages import plain_message
from latermq.protocol.messaging.refusals import CallRefused
from latermq.protocol.messaging.resources import full_name
from latermq.protocol.messaging.sent_messages import SendLimits, SentMessage, sent_message

MAX_BODY_BYTES = 1 << 20
LIMITS = SendLimits(MAX_BODY_BYTES, 128, 16 * 1024, 4_096, 63, 3_600)
ID = "0156F7E71C361B21BC04BDA00000000000"


def request_of(body: bytes = b"x" * 200, topic: str = "orders", namespace: str = "", **system: Any) -> bytes:
    """A request as official clients send it."""
    fields: dict[str, Any] = {
        "message_id": ID,
        "body_digest": pb.Digest(type=pb.CRC32, checksum="3BBAC0C8"),
        "body_encoding": pb.IDENTITY,
        "message_type": pb.NORMAL,
        "born_host": "host",
    } | system
    properties = pb.SystemProperties(**{name: value for name, value in fields.items() if value is not None})
    if "born_timestamp" not in system:
        properties.born_timestamp.FromMilliseconds(1_800_000_000_123)
    message = pb.Message(
        topic=pb.Resource(name=topic, resource_namespace=namespace), system_properties=properties, body=body
    )
    return pb.SendMessageRequest(messages=[message]).SerializeToString()


def full_path(data: bytes) -> SentMessage | None:
    """The result of protobuf and `sent_message`; None for requests that are refused or have several messages."""
    try:
        messages = pb.SendMessageRequest.FromString(data).messages
        if len(messages) != 1:
            return None
        return sent_message(messages[0], full_name(messages[0].topic), "1.2.3.4", 7, LIMITS)
    except (DecodeError, CallRefused):
        return None


def assert_same(data: bytes) -> bool:
    """Compare the two, and return whether the short path accepted the request."""
    found = plain_message(data, LIMITS)
    if found is not None:
        assert found == full_path(data)
    return found is not None


@pytest.mark.parametrize("size", [1, 100, 200, 16_000, 20_000, MAX_BODY_BYTES])
@pytest.mark.parametrize(
    "system",
    [
        {},
        {"body_digest": None},
        {"body_encoding": None, "message_type": None},
        {"born_host": "häst 1"},
        {"message_id": "a message id of another client"},
        {"queue_id": 7},
        {"tag": "paid", "keys": ["order 7"]},
        {"keys": ["a", "b", "c"]},
        {"delivery_timestamp": {"seconds": 1_900_000_000, "nanos": 5_000_000}, "message_type": pb.DELAY},
        {"tag": "t", "delivery_timestamp": {"seconds": 1_900_000_000}, "message_type": pb.DELAY, "queue_id": 1},
    ],
)
def test_usual_requests_are_accepted(size: int, system: dict[str, Any]) -> None:
    assert assert_same(request_of(b"b" * size, **system))


@pytest.mark.parametrize(
    "system",
    [
        {"tag": "a|b"},
        {"tag": " "},
        {"tag": "\x7f"},
        {"tag": ""},
        {"tag": "t" * 128},
        {"keys": [""]},
        {"keys": ["k", " "]},
        {"keys": ["k"] * 4_097},
        {"keys": ["k" * 100] * 45},
        {"queue_id": 128},
        {"queue_id": -1},
        {"delivery_timestamp": {"seconds": -1}},
        {"delivery_timestamp": {"nanos": -1}},
        {"delivery_timestamp": {}},
        {"message_group": "g"},
        {"message_type": pb.FIFO},
        {"message_type": pb.PRIORITY, "priority": 1},
        {"body_encoding": pb.GZIP},
        {"trace_context": "t"},
        {"born_host": "line\n"},
        {"born_host": None},
        {"message_id": " "},
        {"message_id": "a\x01"},
        {"message_id": None},
        {"message_id": "m" * 128},
        {"born_timestamp": {"seconds": -1}},
        {"born_timestamp": {"seconds": 1, "nanos": -1}},
        {"born_timestamp": {"seconds": 253_402_300_800}},
        {"body": b""},
        {"body": b"b" * (MAX_BODY_BYTES + 1)},
        {"namespace": "ns"},
        {"topic": "t" * 126},
        {"topic": ""},
    ],
)
def test_other_requests_are_left_to_the_full_path(system: dict[str, Any]) -> None:
    data = request_of(**system)
    if system.get("topic") == "":
        assert_same(data)
    else:
        assert not assert_same(data)


def test_no_message_and_two_messages_are_left_to_the_full_path() -> None:
    assert not assert_same(b"")
    assert not assert_same(request_of() + request_of())


@pytest.mark.parametrize("system", [{}, {
    "tag": "t", "keys": ["k", "l"], "delivery_timestamp": {"seconds": 1_900_000_000, "nanos": 7_000_000}, "queue_id": 1,
}])  # fmt: skip
def test_every_truncation_and_every_change_of_a_byte_agrees_with_the_full_path(system: dict[str, Any]) -> None:
    data = request_of(b"body", **system)
    for at in range(len(data)):
        assert_same(data[:at])
        assert_same(data[:at] + data[at + 1 :])
        for byte in range(256):
            assert_same(data[:at] + bytes((byte,)) + data[at + 1 :])


texts = st.sampled_from(["", "a", " ", "\x01", "ü", "x" * 127, "x" * 130, "\x7f"]) | st.text(max_size=5)
times = st.fixed_dictionaries({}, optional={
    "seconds": st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2_000_000_000),
    "nanos": st.integers(-5, 10**9 + 5),
})  # fmt: skip
systems = st.fixed_dictionaries(
    {"message_id": texts | st.just(ID)},
    optional={
        "body_digest": st.builds(pb.Digest, type=st.sampled_from([0, 1, 2, 3]), checksum=texts),
        "body_encoding": st.sampled_from([0, 1, 2]),
        "message_type": st.sampled_from([0, 1, 2, 3, 4, 5, 6]),
        "born_timestamp": times,
        "born_host": texts,
        "store_host": texts,
        "queue_id": st.integers(-1, 200),
        "tag": texts,
        "keys": st.lists(texts, max_size=2),
        "message_group": texts,
        "trace_context": texts,
        "delivery_timestamp": times,
        "priority": st.integers(0, 9),
        "lite_topic": texts,
    },
)


@given(systems, texts | st.just("orders"), texts, st.binary(max_size=300), st.lists(
    st.tuples(st.sampled_from(["set", "insert", "delete"]), st.integers(0, 400), st.integers(0, 255)), max_size=2
))  # fmt: skip
def test_any_request_agrees_with_the_full_path(
    system: dict[str, Any], topic: str, namespace: str, body: bytes, edits: list[tuple[str, int, int]]
) -> None:
    data = bytearray(request_of(body, topic, namespace if len(namespace) == 1 else "", **system))
    for edit, position, byte in edits:
        at = position % len(data)
        if edit == "insert":
            data.insert(at, byte)
        elif edit == "set":
            data[at] = byte
        else:
            del data[at]
    assert_same(bytes(data))
