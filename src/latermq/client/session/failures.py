"""Errors of the client: what an answer's code means, and what can go wrong before there is an answer."""

from latermq import errors
from latermq.errors import LaterMQError


class BrokerFailed(LaterMQError):
    """The server met an error of its own (code 1); its remark says which."""


class UnknownAnswer(LaterMQError):
    """An answer with a code that this client has no error for; `code` holds it."""


class ConnectionLost(LaterMQError):
    """No connection to a server, or it broke while a request was under way."""

    retriable = True


class NotConnected(ConnectionLost):
    """No connection could be made: nothing was asked."""


class RequestTimedOut(LaterMQError):
    """No answer in time. Whether the server did what was asked is not known."""

    retriable = True


class NoNameServer(LaterMQError):
    """None of the name servers answers."""

    retriable = True


class NoBroker(LaterMQError):
    """The route names no broker that could take the request."""

    retriable = True


class ClientClosed(LaterMQError):
    """The client was closed, or was not started."""


class UnreadableBody(LaterMQError):
    """A compressed body that cannot be opened here.

    `offset` is that of its message in the queue: whoever wants to pass over it goes on behind. `is_final` tells that
    another try brings nothing, unlike the installation of a library.
    """

    def __init__(self, message: str, *, hint: str = "", offset: int = -1, is_final: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.offset = offset
        self.is_final = is_final


_BY_CODE: dict[int, type[LaterMQError]] = {
    type_.code: type_
    for type_ in (
        BrokerFailed,
        errors.Busy,
        errors.UnsupportedRequest,
        errors.IllegalMessage,
        errors.ServiceUnavailable,
        errors.NoPermission,
        errors.TopicNotFound,
        errors.QueryNotFound,
        errors.FilterError,
        errors.SubscriptionNotFound,
        errors.SubscriptionOutdated,
        errors.GroupNotFound,
        errors.ConsumerOffline,
        errors.IllegalOperation,
    )
}


def errors_from_wire(code: int, remark: str | None, server: str = "") -> LaterMQError:
    """The error that an answer with this code stands for."""
    type_ = _BY_CODE.get(code)
    if type_ is None:
        type_ = type(UnknownAnswer.__name__, (UnknownAnswer,), {"code": code, "__module__": __name__})
    source = f" ({server} answered {code})" if server else ""
    return type_(f"{remark or type_.__doc__ or 'no remark'}{source}")
