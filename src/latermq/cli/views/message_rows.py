"""Messages as lines of text and as rows for tables and JSON."""

import base64
import datetime
from typing import TYPE_CHECKING, Any

from latermq.cli.output import counted

if TYPE_CHECKING:
    from latermq.message.record import Message

# Shown in separate columns.
_COLUMN_PROPERTIES = ("KEYS", "TAGS", "UNIQ_KEY")


def moment(ms: int) -> str | None:
    """Epoch milliseconds as local time; None if they are not set."""
    if ms <= 0:
        return None
    return datetime.datetime.fromtimestamp(ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")


def message_row(message: "Message") -> dict[str, Any]:
    """All fields of a message, for JSON and `message show`."""
    properties = message.properties
    row = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": properties.get("UNIQ_KEY", message.message_id),
        "offset_message_id": message.message_id,
        "tag": properties.get("TAGS"),
        "keys": properties.get("KEYS", "").split(),
        "properties": {name: value for name, value in properties.items() if name not in _COLUMN_PROPERTIES},
        "born_ms": message.born_timestamp_ms,
        "born_host": "{}:{}".format(*message.born_host),
        "stored_ms": message.store_timestamp_ms,
        "store_host": "{}:{}".format(*message.store_host),
        "reconsume_times": message.reconsume_times,
        "size_bytes": message.size_bytes,
    }
    try:
        row["body"] = message.body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(message.body).decode()
    return row


def readable_row(message: "Message") -> dict[str, Any]:
    """The same in readable form, with formatted times and the size of a binary body."""
    row = message_row(message)
    row["size"] = counted(row.pop("size_bytes"), "byte")
    row["born"] = moment(row.pop("born_ms"))
    row["stored"] = moment(row.pop("stored_ms"))
    row.pop("body_base64", None)
    row.pop("body", None)
    row["body"] = body_text(message.body)  # last: it may be long
    return row


def message_line(message: "Message") -> str:
    """One line with store time, queue and offset, tag, keys and body."""
    properties = message.properties
    labels = [f"tag={properties['TAGS']}"] if "TAGS" in properties else []
    labels += [f"key={key}" for key in properties.get("KEYS", "").split()]
    position = f"queue {message.queue_id} offset {message.queue_offset}"
    return "  ".join(
        filter(None, (moment(message.store_timestamp_ms), position, " ".join(labels), body_text(message.body)))
    )


def body_text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"({len(body)} bytes of binary data; --json shows them)"
