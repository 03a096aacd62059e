"""Lateness of messages with a delay level."""

import time
from dataclasses import replace

from latermq.message.names import SCHEDULE_TOPIC
from latermq.message.properties import DELAY_LEVEL
from latermq.timer.levels import LevelTable
from tests.bench.contenders import LEVELS, Contender
from tests.bench.load import Figures, Load, SendShape
from tests.bench.stored import Stored, log_end, read_lateness
from tests.interop.waiting import wait_until

_TABLE = LevelTable(LEVELS)
_DELAYS_MS = tuple(_TABLE.delay_ms(level) for level in range(1, len(_TABLE) + 1))
# Messages per second that a cold broker accepts. All must be sent before they are due.
_SLOWEST_PER_S = 12_000
_LEAD_MS = 2_000
# A backlog of deliveries may take long. The figures show the time.
_STORED_TIMEOUT_S = 300


def due_together(shape: SendShape, count: int) -> SendShape:
    """Sends over half a minute that are due within about a second: later sends have a shorter delay level."""
    lead_ms = _LEAD_MS + count * 1_000 // _SLOWEST_PER_S
    return replace(shape, delays_ms=_DELAYS_MS, due_at_ms=int(time.time() * 1000) + lead_ms)


def measure_levels(load: Load, contender: Contender, name: str, count: int, shape: SendShape) -> Figures:
    """Send delayed messages, wait until all are stored in their topic, and return their lateness."""
    topic = f"bench-{name}"
    load.make_topic(contender, topic, shape.size)
    before = log_end(contender.log_folder)
    sent = load.send(contender, topic, count, shape)
    accepted = count - int(sent["failed sends"])

    last_due_ms = (
        shape.due_at_ms + 1_000 if shape.delays_ms else time.time() * 1000 + _TABLE.delay_ms(shape.delay_level)
    )
    # The broker is not queried before then, because queries would cost CPU.
    wait_until(lambda: time.time() * 1000 > last_due_ms, _STORED_TIMEOUT_S, "the last message is due")

    def all_stored() -> bool:
        return load.stored(contender, topic) > accepted

    wait_until(all_stored, _STORED_TIMEOUT_S, f"{contender.name} has stored {accepted} messages of {topic}")
    return read_lateness(contender.log_folder, before, topic, SCHEDULE_TOPIC, _due_ms).figures()


def _due_ms(waiting: Stored) -> int:
    """The store time of the waiting record plus the delay of its level."""
    return waiting.stored_ms + _TABLE.delay_ms(int(waiting.properties[DELAY_LEVEL]))
