"""One root for every error: its wire code, whether a retry can help, and what the reader should do."""

from typing import ClassVar

from latermq.redaction import redacted

# Messages quote what a client sent, which may be a whole frame; escaped, it would come back several times as large.
MAX_MESSAGE_CHARS = 4000


class LaterMQError(Exception):
    """Something that can be answered: a wire code, a sentence that says what happened, a hint that says what to do."""

    code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False
    ordinary: ClassVar[bool] = False  # an answer that clients ask for in the course of things; not worth a log line

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = _shortened(redacted(message))
        self.hint = _shortened(redacted(hint))
        super().__init__(self.message)

    @property
    def remark(self) -> str:
        """The text for the other side: what happened, then what to do."""
        return f"{self.message}. {self.hint}" if self.hint else self.message


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]}… ({len(text)} characters)"


class ConfigError(LaterMQError):
    """A setting that does not exist, does not parse or contradicts another one."""


class MalformedFrame(LaterMQError):
    """Bytes that are no remoting frame; nothing after them on the connection can be trusted."""


class MalformedRequest(LaterMQError):
    """A frame whose header lacks a field or holds one that does not parse."""


class MessageGone(LaterMQError):
    """A message that is sent back is not in the log: removed by age, or never there."""


class UnsupportedRequest(LaterMQError):
    """A request code that this server does not know."""

    code = 3


class Busy(LaterMQError):
    """A bound was reached; the same request will be taken a moment later."""

    code = 2
    retriable = True


class FlowControl(LaterMQError):
    """Too many timers at once or in one second; the same request may be taken a moment later."""

    retriable = True


class IllegalMessage(LaterMQError):
    """A message that can never be stored: topic, size, properties or delay out of bounds."""

    code = 13


class ServiceUnavailable(LaterMQError):
    """The broker cannot take this now: disk above its mark, starting or stopping."""

    code = 14
    retriable = True


class NoPermission(LaterMQError):
    """The topic, group or setting forbids it."""

    code = 16


class TopicNotFound(LaterMQError):
    """No such topic, and it may not be created on the way."""

    code = 17
    ordinary = True


class QueryNotFound(LaterMQError):
    """Nothing is stored under that key, id or offset."""

    code = 22
    ordinary = True


class FilterError(LaterMQError):
    """A subscription expression that does not parse."""

    code = 23


class SubscriptionNotFound(LaterMQError):
    """The group has not told this broker what it subscribes to; its next heartbeat does."""

    code = 24
    retriable = True


class SubscriptionOutdated(LaterMQError):
    """The broker knows an older subscription than the request; the next heartbeat brings it."""

    code = 25
    retriable = True


class GroupNotFound(LaterMQError):
    """No such consumer group, and it may not be created on the way."""

    code = 26


class InvalidParameter(LaterMQError):
    """A request that is understood and makes no sense: a name, a number or a queue that cannot be."""

    code = 29


class ConsumerOffline(LaterMQError):
    """No member of the group is connected."""

    code = 206


class ConsumerSilent(LaterMQError):
    """A member of the group is connected but did not answer in time."""

    code = 207
    retriable = True


class IllegalOperation(LaterMQError):
    """A recall that cannot be: a handle of another topic or broker, or a timer that is not pending any more."""

    code = 604
    ordinary = True


class StoreError(LaterMQError):
    """The store cannot do what was asked: full disk, failed fsync, a lock held by another process."""

    code = 14
    retriable = True


class CorruptStore(LaterMQError):
    """A file of the store holds what no version of it could have written."""


def error_codes() -> set[int]:
    """Every code that an answer may carry, but success."""
    return {LaterMQError.code, *(error.code for error in LaterMQError.__subclasses__())}
