"""Answers that are encoded by hand are those of protobuf, byte for byte."""

from hypothesis import given
from hypothesis import strategies as st

from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.encoded_answers import acknowledged_answer, stored_answer

OK = pb.Status(code=pb.OK, message="OK")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20) | st.text("ab", max_size=400)
NAMES = TEXT.filter(bool)


@given(NAMES, st.integers(0, (1 << 63) - 1))
def test_the_answer_to_a_send(message_id: str, offset: int) -> None:
    entry = pb.SendResultEntry(status=OK, message_id=message_id, offset=offset)
    expected = pb.SendMessageResponse(status=OK, entries=[entry])
    assert stored_answer(message_id, offset) == expected.SerializeToString()


@given(TEXT, NAMES)
def test_the_answer_to_an_acknowledgement(message_id: str, handle: str) -> None:
    entry = pb.AckMessageResultEntry(message_id=message_id, receipt_handle=handle, status=OK)
    expected = pb.AckMessageResponse(status=OK, entries=[entry])
    assert acknowledged_answer(message_id, handle) == expected.SerializeToString()
