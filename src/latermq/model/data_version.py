"""The version of a table."""

from msgspec import Struct


class DataVersion(Struct):
    """How often a config table changed; name servers and brokers compare it instead of the table."""

    counter: int = 0
    state_version: int = 0
    timestamp_ms: int = 0

    def bump(self, now_ms: int) -> None:
        self.counter += 1
        self.timestamp_ms = now_ms

    def copy(self) -> "DataVersion":
        return DataVersion(self.counter, self.state_version, self.timestamp_ms)
