"""Ids of timers: a topic and a unique key in one opaque word that can be a part of a path. They survive every move."""

import base64
import binascii

from latermq.errors import QueryNotFound
from latermq.message.names import is_topic

MAX_ID_CHARS = 1_000


def timer_id(topic: str, unique_key: str) -> str:
    """Return the id of a timer."""
    return base64.urlsafe_b64encode(f"{topic} {unique_key}".encode()).rstrip(b"=").decode()


def parse_timer_id(text: str) -> tuple[str, str]:
    """Return topic and unique key; raises QueryNotFound for anything that is not an id."""
    try:
        if len(text) <= MAX_ID_CHARS:
            words = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True).decode()
            topic, _, unique_key = words.partition(" ")
            if is_topic(topic) and topic and unique_key and timer_id(topic, unique_key) == text:
                return topic, unique_key
    except (binascii.Error, ValueError):
        pass
    raise QueryNotFound(f"{text[:80]!r} is not the id of a timer", hint="Use an id from an answer of this API")
