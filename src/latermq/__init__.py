"""LaterMQ, a message broker for delayed messages. This package exports the public API.

`latermq.client.blocking` has the same clients for programs without asyncio, `latermq.errors` has one error per wire
code, and `latermq.pipeline` has the functions for Spark. All other modules are private.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latermq.client import (
        Admin,
        App,
        BrokerFailed,
        ClientClosed,
        ClientTls,
        ConnectionLost,
        Credentials,
        Density,
        Message,
        MessageQueue,
        NoBroker,
        NoNameServer,
        Outcome,
        OutgoingMessage,
        PendingTimer,
        Producer,
        PullConsumer,
        PullResult,
        PushConsumer,
        Reject,
        RequestTimedOut,
        ScheduledTimer,
        SendResult,
        Sql,
        UnknownResponse,
        UnreadableBody,
        Verdict,
    )
    from latermq.errors import LaterMQError

    __version__: str

__all__ = [
    "Admin",
    "App",
    "BrokerFailed",
    "ClientClosed",
    "ClientTls",
    "ConnectionLost",
    "Credentials",
    "Density",
    "LaterMQError",
    "Message",
    "MessageQueue",
    "NoBroker",
    "NoNameServer",
    "Outcome",
    "OutgoingMessage",
    "PendingTimer",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PushConsumer",
    "Reject",
    "RequestTimedOut",
    "ScheduledTimer",
    "SendResult",
    "Sql",
    "UnknownResponse",
    "UnreadableBody",
    "Verdict",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # Names are imported on first use, because every command and every part of the broker imports this package. The
    # import of the client takes 0.15 s, twice as long as the whole command line, and importlib.metadata takes 0.03 s.
    if name == "__version__":
        from importlib.metadata import version

        return version("latermq")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "latermq.errors" if name == "LaterMQError" else "latermq.client"
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
