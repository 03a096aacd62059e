"""Recall handles, which senders receive for their timers and use to cancel them.

docs/formats/message-ids.md describes the layout.
"""

import base64
import binascii
import re
from typing import NamedTuple

from latermq.errors import IllegalOperation

_VERSION = "v1"
_WORDS = 5
# The input that Java's URL-safe decoder accepts; Python's decoder ignores unknown characters.
_ENCODED = re.compile(r"[A-Za-z0-9_-]+={0,2}").fullmatch


class RecallHandle(NamedTuple):
    """The parts of a handle."""

    topic: str
    broker_name: str
    timestamp_ms: int  # -1 if the part is not numeric: it is checked last, if at all
    unique_key: str


def encode_recall_handle(topic: str, broker_name: str, timestamp_ms: int, unique_key: str) -> str:
    """Encode the handle of a timer."""
    words = f"{_VERSION} {topic} {broker_name} {timestamp_ms} {unique_key}"
    return base64.urlsafe_b64encode(words.encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle:
    """Decode a handle; raises IllegalOperation if it is not valid."""
    words = _decode(text).split(" ", _WORDS - 1)
    if words[0] != _VERSION or len(words) < _WORDS or not words[-1]:
        raise _invalid()
    _, topic, broker_name, timestamp, unique_key = words
    is_number = timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 18
    return RecallHandle(topic, broker_name, int(timestamp) if is_number else -1, unique_key)


def _decode(text: str) -> str:
    if not _ENCODED(text):
        raise _invalid()
    bare = text.rstrip("=")
    padding = "=" * (-len(bare) % 4)
    if len(text) not in (len(bare), len(bare) + len(padding)):
        raise _invalid()
    try:
        return base64.urlsafe_b64decode(bare + padding).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise _invalid() from None


def _invalid() -> IllegalOperation:
    return IllegalOperation("recall handle is invalid", hint="Pass it exactly as the send's reply returned it")
