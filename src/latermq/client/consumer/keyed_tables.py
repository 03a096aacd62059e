"""Tables in a JSON body that have queues (objects) as keys. Java writes them although they are not valid JSON."""

from typing import Any

import msgspec

from latermq.errors import MalformedRequest
from latermq.protocol.remoting.json_body import decode_keyed_map
from latermq.protocol.remoting.queues import MessageQueue


def keyed_table(body: bytes, name: str) -> list[tuple[MessageQueue, Any]]:
    """Return the entries of the table in the body's field `name`."""
    needle = f'"{name}":'.encode()
    at = body.find(needle)
    if at < 0:
        return []
    start = at + len(needle)
    while body[start : start + 1].isspace():
        start += 1
    if body[start : start + 4] == b"null":
        return []
    try:
        return [(msgspec.convert(key, MessageQueue), value) for key, value in decode_keyed_map(body[start:])]
    except msgspec.MsgspecError as error:
        raise MalformedRequest(f"cannot parse table {name} of the body: {error}") from None
