"""Versions of config tables."""

from msgspec import Struct


class DataVersion(Struct):
    """A counter of changes to a config table. Name servers and brokers compare versions instead of tables."""

    counter: int = 0
    state_version: int = 0
    timestamp_ms: int = 0

    def bump(self, now_ms: int) -> None:
        self.counter += 1
        self.timestamp_ms = now_ms

    def copy(self) -> "DataVersion":
        return DataVersion(self.counter, self.state_version, self.timestamp_ms)
