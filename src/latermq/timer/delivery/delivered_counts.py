"""Counts of deliveries and their lateness."""

import numpy as np

from latermq.arrays import Ints
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC, TIMER_TOPIC
from latermq.message.properties import REAL_TOPIC
from latermq.message.record import record_property
from latermq.store.block import Block
from latermq.timer.counters import Counters
from latermq.timer.delivery.dead_letters import QUEUE as DEAD_LETTER_QUEUE
from latermq.timer.delivery.lateness import LATENESS_BOUNDS_MS, Distribution


class DeliveredCounts:
    """Counts for timers and delay levels."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.delivered = 0
        self.dead_letters = 0
        self.timer_lateness = Distribution(LATENESS_BOUNDS_MS)
        self.level_lateness = Distribution(LATENESS_BOUNDS_MS)

    def add(self, block: Block, dues: Ints, stored_ms: int) -> None:
        """Count an appended block. Dead letters and renewals do not count towards lateness."""
        self.delivered += len(block)
        if block.level and DEAD_LETTER_QUEUE not in block.queues:
            self.level_lateness.add(stored_ms - dues)
            return
        in_time = np.ones(len(block), bool)
        for number, rows in block.rows_by_queue().items():
            topic = block.queues[number][0]
            if topic == TIMER_DEAD_LETTER_TOPIC:
                in_time[rows] = False
                self.dead_letters += len(rows)
                self.delivered -= len(rows)
                if block.level == 0:
                    self._leave_dead(block.rows(rows))
            elif topic == TIMER_TOPIC:  # a renewed timer stays pending
                in_time[rows] = False
                self._counters.tallies.renewed += len(rows)
            elif block.level == 0:
                self._counters.tallies.delivered[topic] += len(rows)
                self._counters.leave(topic, len(rows))
        lateness = self.level_lateness if block.level else self.timer_lateness
        lateness.add(stored_ms - (dues if in_time.all() else dues[in_time]))

    def _leave_dead(self, block: Block) -> None:
        ends = np.cumsum(block.sizes)
        for end, size in zip(ends.tolist(), block.sizes.tolist(), strict=True):
            topic = record_property(bytes(block.data[end - size : end]), REAL_TOPIC.encode()) or b""
            self._counters.leave(topic.decode(), 1)
