"""Frames of POP that are written from templates equal those that are encoded field by field."""

import pytest

from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import BINARY, JSON, Command, encode_response
from latermq.protocol.remoting.pop import encode_ack_reply


@pytest.mark.parametrize("encoding", [JSON, BINARY])
@pytest.mark.parametrize("opaque", [0, 7, (1 << 31) - 1, -(1 << 31)])
def test_the_reply_to_an_acknowledgement_is_that_of_its_fields(encoding: int, opaque: int) -> None:
    request = Command(Request.ACK_MESSAGE, opaque=opaque, encoding=encoding)
    assert encode_ack_reply(request) == encode_response(request, fields={"outcome": "done"})
