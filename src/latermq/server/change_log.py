"""What operators change is logged, each change once, with who made it: by brokers and name servers alike."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from latermq.message.names import MAX_RETRY_TOPIC_CHARS, escaped
from latermq.protocol.remoting.frames import Command
from latermq.server.remoting.connection import Connection

MAX_NAMES = 10  # of a list that one line shows
_SHOWN_CHARS = MAX_RETRY_TOPIC_CHARS  # so every legal name is shown whole

_log = structlog.get_logger(__name__)
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
Handler = Callable[[Connection, Command, Any], bytes | None]


@dataclass(frozen=True)
class Change:
    """How the log calls a change, which header fields it shows, and which names of the decoded body.

    Other fields are not shown: some are secrets.
    """

    event: str
    fields: tuple[str, ...] = ()
    names: Callable[[Any], list[str]] | None = None


def log_change(handler: Handler, change: Change) -> Handler:
    """The same handler, which logs what it changes once it has accepted the request.

    Refusals are logged as all refusals are; a failure of the disk later on, as all such failures.
    """

    def handle(connection: Connection, command: Command, asked: Any) -> bytes | None:
        answer = handler(connection, command, asked)
        told = _told(command, change.fields)
        if change.names is not None:
            names = change.names(asked)
            told["count"] = str(len(names))
            told["names"] = ", ".join(escaped(name, _SHOWN_CHARS) for name in names[:MAX_NAMES])
        _log.info(change.event, peer=connection.peer_name, **told)
        return answer

    return handle


def _told(command: Command, fields: tuple[str, ...]) -> dict[str, str]:
    if not fields:
        return {}
    if command.binary_fields is not None:
        found = command.binary_fields
        return {name: escaped(found[name], _SHOWN_CHARS) for name in fields if name in found}
    raw = _decode_fields(command.json_fields)
    return {name: escaped(_text(raw[name]), _SHOWN_CHARS) for name in fields if name in raw}


def _text(raw: msgspec.Raw) -> str:
    """A value as it was meant; Java sends all as texts, others send numbers as such."""
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.ValidationError:
        return bytes(raw).decode(errors="replace")
