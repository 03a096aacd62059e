"""What the rules look at: the figures that brokers report for alerts, read from their counters."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec


class Stall(NamedTuple):
    """A group that consumes nothing of a topic although messages arrive, and for how long."""

    group: str
    topic: str
    lag: int
    for_ms: int


class NewDeadLetters(NamedTuple):
    """A topic with new dead letters: how many were ever stored in it, and the age of the last."""

    topic: str
    stored: int
    age_ms: int


class Lateness(NamedTuple):
    """How many timers were delivered at most so late, by bound, and their number, since the broker's start."""

    bounds_ms: list[float]
    upto: list[float]


class BrokerSignals(msgspec.Struct, frozen=True):
    """The figures of one broker."""

    overdue_timers: int
    overdue_ms: int
    is_clock_held: bool
    kept_back: int
    disk_used_ratio: float
    lateness: Lateness
    stalled: list[Stall]
    dead_letters: list[NewDeadLetters]


def read_signals(info: Mapping[str, str]) -> BrokerSignals | None:
    """Return what a broker's counters say. None if it reports nothing for alerts, as RocketMQ's or an old broker."""
    decode = msgspec.json.decode
    try:
        lateness = decode(info["latermqTimerLateness"], type=Lateness)
        if len(lateness.upto) != len(lateness.bounds_ms) + 1 or not lateness.bounds_ms:
            return None
        return BrokerSignals(
            int(info["latermqOverdueTimers"]),
            int(info["latermqOverdueMs"]),
            info["latermqClockHeld"] == "true",
            int(info["latermqKeptBack"]),
            float(info["commitLogDiskRatio"]),
            lateness,
            decode(info["latermqStalledGroups"], type=list[Stall]),
            decode(info["latermqNewDeadLetters"], type=list[NewDeadLetters]),
        )
    except (KeyError, ValueError):
        return None
