"""The driver's note: by which a broker sees that a driver uses the same folder as itself.

A driver writes a token of its own below the root before it begins, and sends the same one with its request. A broker
that does not find it in its own folder refuses: the two use different folders, whatever their paths are called.
"""

import msgspec

from latermq.errors import CorruptStore
from latermq.handover.checked_file import decode_checked, encode_checked

VERSION = 1


class DriverNote(msgspec.Struct, frozen=True, kw_only=True):
    """`token` is random, and another one each time that a driver begins."""

    token: str
    version: int = VERSION


def note_path(store_id: str) -> str:
    """Where it lies below the root."""
    return f"drivers/{store_id}"


def encode_note(token: str) -> bytes:
    """Its bytes."""
    return encode_checked(DriverNote(token=token))


def decode_note(data: bytes, where: str) -> DriverNote:
    """What a note says; `where` is told in errors."""
    hint = "A driver replaces it whenever it begins"
    note = decode_checked(data, DriverNote, f"the note {where}", hint)
    if note.version != VERSION:
        raise CorruptStore(f"the note {where} has version {note.version}, not {VERSION}", hint=hint)
    return note
