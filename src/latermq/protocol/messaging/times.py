"""Points in time and durations of the 5.x protocol, in milliseconds."""

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

# Years 1 to 9999, the range of protobuf's timestamps. A client can send any 64-bit number.
_MIN_TIMESTAMP_S, MAX_TIMESTAMP_S = -62_135_596_800, 253_402_300_799
_MIN_TIMESTAMP_MS, _MAX_TIMESTAMP_MS = _MIN_TIMESTAMP_S * 1000, MAX_TIMESTAMP_S * 1000 + 999
_MAX_NANOS = 999_999_999


def timestamp_ms(timestamp: Timestamp) -> int | None:
    """Return a point in time since 1970; None if it is outside the range of timestamps."""
    if not (_MIN_TIMESTAMP_S <= timestamp.seconds <= MAX_TIMESTAMP_S and 0 <= timestamp.nanos <= _MAX_NANOS):
        return None
    return timestamp.seconds * 1000 + timestamp.nanos // 1_000_000


def duration_ms(duration: Duration) -> int:
    """Return a duration, rounded down. It may be negative or far longer than any limit."""
    return duration.seconds * 1000 + duration.nanos // 1_000_000


def set_timestamp(timestamp: Timestamp, value_ms: int) -> None:
    """Set a point in time. Values that no timestamp can have are moved into its range."""
    if not _MIN_TIMESTAMP_MS <= value_ms <= _MAX_TIMESTAMP_MS:
        value_ms = _MIN_TIMESTAMP_MS if value_ms < 0 else _MAX_TIMESTAMP_MS
    timestamp.seconds = value_ms // 1000
    timestamp.nanos = value_ms % 1000 * 1_000_000
