"""All errors, under one root. Each has a wire code, says whether a retry can help, and has a hint for the reader."""

from typing import ClassVar

from latermq.redaction import redacted

# Messages quote client input, which may be a whole frame. Escaped, it would be several times as large in the response.
MAX_MESSAGE_CHARS = 4000


class LaterMQError(Exception):
    """An error that can be sent as a response: its wire code, a message that says what happened, and a hint."""

    code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False
    is_expected: ClassVar[bool] = False  # occurs in normal operation and is not logged

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = _truncated(redacted(message))
        self.hint = _truncated(redacted(hint))
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.remark

    @property
    def remark(self) -> str:
        """The text for the peer: what happened, then what to do."""
        return f"{self.message}. {self.hint}" if self.hint else self.message


def _truncated(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]}… ({len(text)} characters)"


class ConfigError(LaterMQError):
    """A setting does not exist, is not valid or contradicts another one."""


class MalformedFrame(LaterMQError):
    """The bytes are not a valid remoting frame. The rest of the connection's data cannot be decoded."""


class MalformedRequest(LaterMQError):
    """A header field is missing or not valid, or the body cannot be decoded."""


class MessageNotFound(LaterMQError):
    """A message that a consumer sent back is not in the log: it has expired or never existed."""


class UnsupportedRequest(LaterMQError):
    """The server does not support this request code."""

    code = 3


class Busy(LaterMQError):
    """A limit is reached. Repeat the request later."""

    code = 2
    retriable = True


class FlowControl(LaterMQError):
    """Too many timers are pending or due in one second. Repeat the request later."""

    retriable = True


class IllegalMessage(LaterMQError):
    """The message cannot be stored: its topic, size, properties or delay is not allowed."""

    code = 13


class ServiceUnavailable(LaterMQError):
    """The broker cannot accept the request now: its disk is full, or it is starting or stopping."""

    code = 14
    retriable = True


class NoPermission(LaterMQError):
    """The topic, the group or a setting forbids the operation."""

    code = 16


class TopicNotFound(LaterMQError):
    """The topic does not exist and may not be auto-created."""

    code = 17
    is_expected = True


class QueryNotFound(LaterMQError):
    """Nothing is stored for this key, id or offset."""

    code = 22
    is_expected = True


class FilterError(LaterMQError):
    """The subscription expression is not valid."""

    code = 23


class SubscriptionNotFound(LaterMQError):
    """The broker does not have the group's subscription yet. The next heartbeat registers it."""

    code = 24
    retriable = True


class SubscriptionOutdated(LaterMQError):
    """The broker has an older subscription than the request. The next heartbeat updates it."""

    code = 25
    retriable = True


class GroupNotFound(LaterMQError):
    """The consumer group does not exist and may not be auto-created."""

    code = 26


class InvalidParameter(LaterMQError):
    """A value in the request is not valid: a name, a number or a queue."""

    code = 29


class ConsumerOffline(LaterMQError):
    """No member of the group is connected."""

    code = 206


class ConsumerTimedOut(LaterMQError):
    """A member of the group is connected but did not answer in time."""

    code = 207
    retriable = True


class TransactionNotFound(LaterMQError):
    """The log has no half message at these offsets or with this key, or it belongs to another producer group."""


class PollingFull(LaterMQError):
    """Too many pops wait, or too many messages are in flight. Pop again later."""

    code = 209
    retriable = True


class IllegalOperation(LaterMQError):
    """A timer cannot be recalled because it is no longer pending, or a transaction has ended in another way."""

    code = 604
    is_expected = True


class StoreError(LaterMQError):
    """The store cannot execute the operation: the disk is full, fsync failed, or another process holds the lock."""

    code = 14
    retriable = True


class CorruptStore(LaterMQError):
    """A file of the store has contents that no version of LaterMQ writes."""


def error_codes() -> set[int]:
    """All codes that an error response may have."""
    return {LaterMQError.code, *(error.code for error in LaterMQError.__subclasses__())}
