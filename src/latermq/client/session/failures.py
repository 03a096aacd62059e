"""Client errors: those that a response code stands for, and those that occur without a response."""

import re

from latermq import errors
from latermq.errors import LaterMQError


class BrokerFailed(LaterMQError):
    """The server failed with an internal error."""


class UnknownResponse(LaterMQError):
    """The server sent a response code that this client does not know."""


class AccessRefused(errors.NoPermission):
    """The server checks users, and this client's user is unknown, or may not do what it asked for."""


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

# The remarks of RocketMQ's brokers and of ours about users, and what to do about them.
_NO_USER = "username cannot be null."
_WRONG_SIGNATURE = "check signature failed."
_ABOUT_A_USER = re.compile(r"User:.* (?:is not found|is disabled|has no permission to access .*)\.", re.DOTALL)
_SET_CREDENTIALS = (
    "Name a user and its secret: --user NAME --secret-file FILE, or LATERMQ_USER and LATERMQ_SECRET_FILE; "
    "in programs also credentials=Credentials(user, secret)"
)
_CHECK_SECRET = "Check the secret and the name of the user"
_ASK = "An administrator can change this: `latermq user` and `latermq acl`, or mqadmin updateUser and createAcl"


def error_from_wire(code: int, remark: str | None, server: str = "", user: str = "") -> LaterMQError:
    """Return the error for a response code. Without a remark, the docstring of its class is the message.

    `user` is the one that signed the request. The remark about a wrong signature does not name it.
    """
    type_ = _BY_CODE.get(code)
    if type_ is errors.NoPermission and (hint := _access_hint(remark or "")):
        known = f" (user {user}, {server})" if user and remark == _WRONG_SIGNATURE else ""
        return AccessRefused((remark or "").rstrip(".") + known, hint=hint)
    if type_ is None:
        members = {"code": code, "__doc__": UnknownResponse.__doc__, "__module__": __name__}
        type_ = type(UnknownResponse.__name__, (UnknownResponse,), members)
    source = f" ({server} answered {code})" if server else ""
    return type_(f"{remark or (type_.__doc__ or '').rstrip('.')}{source}")


def _access_hint(remark: str) -> str:
    """What to do about a refusal that concerns the user of a request. Empty if it concerns something else."""
    if remark == _NO_USER:
        return _SET_CREDENTIALS
    if remark == _WRONG_SIGNATURE:
        return _CHECK_SECRET
    return _ASK if _ABOUT_A_USER.fullmatch(remark) else ""
