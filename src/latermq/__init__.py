"""LaterMQ: a message broker for messages that must arrive later. These names are what programs import.

`latermq.client.blocking` has the same clients for programs without asyncio, `latermq.errors` has the errors by wire
code, and `latermq.pipeline` has the calls for Spark. All other modules are private.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latermq.client import (
        Admin,
        BrokerFailed,
        ClientClosed,
        ConnectionLost,
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
        RequestTimedOut,
        SendResult,
        Sql,
        UnknownAnswer,
        UnreadableBody,
        Verdict,
    )
    from latermq.errors import LaterMQError

    __version__: str

__all__ = [
    "Admin",
    "BrokerFailed",
    "ClientClosed",
    "ConnectionLost",
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
    "RequestTimedOut",
    "SendResult",
    "Sql",
    "UnknownAnswer",
    "UnreadableBody",
    "Verdict",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # On first use: the client takes 0.15 s to import, twice as long as the whole command line, and importlib.metadata
    # 0.03 s. Every command and every part of the broker imports this package.
    if name == "__version__":
        from importlib.metadata import version

        return version("latermq")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "latermq.errors" if name == "LaterMQError" else "latermq.client"
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
