"""Client errors: those that a response code stands for, and those that occur without a response."""

from latermq import errors
from latermq.errors import LaterMQError


class BrokerFailed(LaterMQError):
    """The server failed with an internal error."""


class UnknownResponse(LaterMQError):
    """The server sent a response code that this client does not know."""


class ConnectionLost(LaterMQError):
    """There is no connection to a server, or it broke during a request."""

    retriable = True


class ConnectFailed(ConnectionLost):
    """The connection could not be opened, so no request was sent."""


class RequestTimedOut(LaterMQError):
    """The server did not answer in time. It is unknown whether it executed the request."""

    retriable = True


class NoNameServer(LaterMQError):
    """No name server answers."""

    retriable = True


class NoBroker(LaterMQError):
    """No broker for the request is registered."""

    retriable = True


class ClientClosed(LaterMQError):
    """The client was closed, or was not started."""


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
        errors.InvalidParameter,
        errors.ConsumerOffline,
        errors.IllegalOperation,
    )
}


def error_from_wire(code: int, remark: str | None, server: str = "") -> LaterMQError:
    """Return the error for a response code. Without a remark, the docstring of its class is the message."""
    type_ = _BY_CODE.get(code)
    if type_ is None:
        members = {"code": code, "__doc__": UnknownResponse.__doc__, "__module__": __name__}
        type_ = type(UnknownResponse.__name__, (UnknownResponse,), members)
    source = f" ({server} answered {code})" if server else ""
    return type_(f"{remark or (type_.__doc__ or '').rstrip('.')}{source}")
