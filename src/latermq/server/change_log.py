"""Log of operators' changes on brokers and name servers: one line per change, with the client that made it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from latermq.message.names import MAX_RETRY_TOPIC_CHARS, escaped
from latermq.protocol.remoting.frames import Command
from latermq.server.remoting.connection import Connection

MAX_NAMES = 10  # shown per line
_SHOWN_CHARS = MAX_RETRY_TOPIC_CHARS  # long enough for every valid name

_log = structlog.get_logger(__name__)
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
Handler = Callable[[Connection, Command, Any], bytes | None]


@dataclass(frozen=True)
class Change:
    """The log event of a change, the header fields to show, and the names to show from the decoded body.

    Other fields are not shown, because some are secrets.
    """

    event: str
    fields: tuple[str, ...] = ()
    names: Callable[[Any], list[str]] | None = None
    more: Callable[[Command], Mapping[str, str]] | None = None  # read from the body of a row with a header

    def details(self, command: Command, content: Any) -> dict[str, str]:
        """What to show of a decoded request."""
        shown = _shown_fields(command, self.fields)
        if self.names is not None:
            names = self.names(content)
            shown["count"] = str(len(names))
            shown["names"] = ", ".join(escaped(name, _SHOWN_CHARS) for name in names[:MAX_NAMES])
        if self.more is not None:
            shown |= self.more(command)
        return shown


def log_change(handler: Handler, change: Change) -> Handler:
    """Wrap a handler to log its change once it has accepted the request.

    Rejected requests and later disk failures are logged elsewhere, like all others.
    """

    def handle(connection: Connection, command: Command, content: Any) -> bytes | None:
        answer = handler(connection, command, content)
        _log.info(change.event, peer=connection.peer_name, **change.details(command, content))
        return answer

    return handle


def _shown_fields(command: Command, fields: tuple[str, ...]) -> dict[str, str]:
    if not fields:
        return {}
    if command.binary_fields is not None:
        found = command.binary_fields
        return {name: escaped(found[name], _SHOWN_CHARS) for name in fields if name in found}
    raw = _decode_fields(command.json_fields)
    return {name: escaped(_text(raw[name]), _SHOWN_CHARS) for name in fields if name in raw}


def _text(raw: msgspec.Raw) -> str:
    """A field's value as text. Java sends all values as strings; other clients send numbers as JSON numbers."""
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.ValidationError:
        return bytes(raw).decode(errors="replace")
