"""Requests to send with more messages or properties than protobuf decodes quickly."""

import pytest

from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.encoded_fields import SMALL_BYTES, check_counts
from latermq.protocol.messaging.refusals import CallRefused

BODY = b"x" * SMALL_BYTES


def request(messages: int, properties: int) -> bytes:
    one = pb.Message(
        topic=pb.Resource(name="t"), user_properties={str(number): "v" for number in range(properties)},
        system_properties=pb.SystemProperties(message_id="A", queue_id=7, keys=["a", "b"]),
    )  # fmt: skip
    request = pb.SendMessageRequest(messages=[one] * messages)
    request.messages[0].body = BODY
    return request.SerializeToString()


def test_what_is_within_the_limits_is_decoded() -> None:
    check_counts(request(messages=20, properties=10), 20, 10)


def test_too_many_messages_are_refused() -> None:
    with pytest.raises(CallRefused, match="20 messages") as refused:
        check_counts(request(messages=21, properties=1), 20, 10)
    assert refused.value.status_code == pb.PAYLOAD_TOO_LARGE


def test_too_many_user_properties_are_refused() -> None:
    with pytest.raises(CallRefused, match="10 user properties") as refused:
        check_counts(request(messages=2, properties=11), 20, 10)
    assert refused.value.status_code == pb.MESSAGE_PROPERTIES_TOO_LARGE


@pytest.mark.parametrize("rest", [b"\x0a", b"\x0a\xff", b"\xff" * 11, b"\x0f", b"\x0a\x05\x12", b"\x09\x01", b"\x0d"])
def test_bytes_that_are_not_valid_are_left_to_protobuf(rest: bytes) -> None:
    check_counts(request(messages=1, properties=1) + rest, 2, 10)
