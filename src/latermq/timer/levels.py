"""Delay levels: a fixed table of delays, and the due time of a message of a level."""

import re

from latermq.errors import ConfigError
from latermq.message.entry_id import MAX_LEVELS
from latermq.message.properties import find_property
from latermq.store.dispatch import due_ms_of

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DELAY = re.compile(r"(\d+)([smhd])")
# Delay of a record whose level is not in the table; RocketMQ's own rule.
_UNKNOWN_LEVEL_MS = 1_000


class LevelTable:
    """The delays of levels 1, 2, 3, …"""

    def __init__(self, text: str = DEFAULT_LEVELS) -> None:
        delays = []
        for word in text.split():
            match = _DELAY.fullmatch(word)
            if match is None or not int(match[1]):
                raise ConfigError(
                    f"timer.levels holds {word!r}, which is not a delay",
                    hint="Write numbers with s, m, h or d: 1s 5s 1m 2h",
                )
            delays.append(int(match[1]) * _UNIT_MS[match[2]])
        if not 1 <= len(delays) <= MAX_LEVELS:
            raise ConfigError(f"timer.levels has {len(delays)} levels; it must have 1 to {MAX_LEVELS}")
        self._delays_ms = tuple(delays)

    def __len__(self) -> int:
        return len(self._delays_ms)

    def clamp(self, level: int) -> int:
        """Return the level, or the highest level if the table has no such level."""
        return min(level, len(self._delays_ms))

    def delay_ms(self, level: int) -> int:
        """Return how long a message of this level waits."""
        return self._delays_ms[self.clamp(level) - 1]

    def due_ms(self, properties: bytes, store_timestamp_ms: int) -> int:
        """Return the due time of a schedule-topic record: its own, or the table's if RocketMQ wrote the record."""
        due_ms = due_ms_of(properties)
        if due_ms is not None:
            return due_ms
        level = find_property(properties, b"DELAY") or b""
        known = level.isdigit() and len(level) < 10 and int(level) > 0
        return store_timestamp_ms + (self.delay_ms(int(level)) if known else _UNKNOWN_LEVEL_MS)
