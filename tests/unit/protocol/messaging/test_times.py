"""Points in time of the 5.x protocol."""

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from latermq.protocol.messaging.times import set_timestamp, timestamp_ms

FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999


@pytest.mark.parametrize("value_ms", [FIRST_MS, -1, 0, 1, 1_700_000_000_123, LAST_MS])
def test_times_survive(value_ms: int) -> None:
    timestamp = Timestamp()
    set_timestamp(timestamp, value_ms)
    assert timestamp_ms(timestamp) == timestamp.ToMilliseconds() == value_ms


@pytest.mark.parametrize(("value_ms", "expected_ms"), [(-(1 << 63), FIRST_MS), ((1 << 63) - 1, LAST_MS)])
def test_times_that_a_record_can_have_but_a_timestamp_cannot_are_cut(value_ms: int, expected_ms: int) -> None:
    timestamp = Timestamp()
    set_timestamp(timestamp, value_ms)
    assert timestamp_ms(timestamp) == expected_ms


@pytest.mark.parametrize(
    ("seconds", "nanos"),
    [(LAST_MS // 1000 + 1, 0), (FIRST_MS // 1000 - 1, 0), (0, -1), (0, 1_000_000_000), (1 << 62, 0)],
)
def test_timestamps_outside_their_range_are_not_times(seconds: int, nanos: int) -> None:
    assert timestamp_ms(Timestamp(seconds=seconds, nanos=nanos)) is None
