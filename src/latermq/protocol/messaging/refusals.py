"""Refusals of the 5.x protocol: a code and a text in the answer, while the gRPC call itself succeeds."""

from latermq.errors import LaterMQError
from latermq.protocol.messaging import messaging_pb2 as pb


class CallRefused(LaterMQError):
    """A call, or one message of it, that is answered with this code of the 5.x protocol."""

    is_expected = True

    def __init__(self, status_code: pb.Code, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status_code = status_code
