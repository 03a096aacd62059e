"""Driver notes, by which a broker verifies that a driver uses the same folder as the broker.

Before it begins, a driver writes a random token below the root, and sends the same token with its request. A broker
that does not find the token in its own folder refuses the driver. The two use different folders then, even if their
paths are equal.
"""

import msgspec

from latermq.handover.checked_file import decode_checked, encode_checked
from latermq.redaction import without_secrets

VERSION = 1


class DriverNote(msgspec.Struct, frozen=True, kw_only=True):
    """A note. `token` is random, and changes each time that a driver begins."""

    token: str
    version: int = VERSION

    def __repr__(self) -> str:
        return without_secrets(self, "token")


def note_path(store_id: str) -> str:
    """The path of a store's note below the root."""
    return f"drivers/{store_id}"


def encode_note(token: str) -> bytes:
    """Encode a note with this token."""
    return encode_checked(DriverNote(token=token))


def decode_note(data: bytes, where: str) -> DriverNote:
    """Decode a note; errors contain `where`."""
    hint = "A driver replaces it when it starts"
    return decode_checked(data, DriverNote, f"the note {where}", hint, version=VERSION)
