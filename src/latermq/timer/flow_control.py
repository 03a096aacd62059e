"""Flow control: rejects timers while too many wait to be written, or if too many are due within one second."""

from latermq.config import TimerConfig
from latermq.errors import FlowControl
from latermq.message.slots import slot_of
from latermq.timer.counters import Counters
from latermq.timer.intake.timer_topic import TimerTopic
from latermq.timer.intake.write_queue import WriteQueue
from latermq.timer.pending_slots import PendingSlots


class TimerLimits:
    """The limits `timer.max_waiting` and `timer.slot_limit`."""

    def __init__(
        self, topic: TimerTopic, write_queue: WriteQueue, slots: PendingSlots, counters: Counters, config: TimerConfig
    ) -> None:
        self._topic = topic
        self._write_queue = write_queue
        self._slots = slots
        self._counters = counters
        self._config = config

    def check(self, due_ms: int, draw: float) -> None:
        """Raise if too many timers wait to be written, or if the timer's second is too full.

        Above the limit of a second, the share of rejected timers grows with the count; at twice the limit all are
        rejected. `draw` is a random number below 1.
        """
        if self._room <= 0:
            self._counters.tallies.refused += 1
            raise FlowControl(
                f"{self._config.max_waiting} timers are waiting to be written to the engine",
                hint="Retry in a moment, or raise timer.max_waiting",
            )
        limit = self._config.slot_limit
        if limit:
            slot_ms = slot_of(due_ms)
            count = self._slots.count(slot_ms)
            if count >= limit and draw < (count - limit + 1) / limit:
                self._counters.tallies.refused += 1
                raise FlowControl(
                    f"{count} timers are due within one second; the limit is {limit}",
                    hint="Choose another time, or raise timer.slot_limit",
                )

    def unchecked_room(self) -> int:
        """How many timers can be accepted in a row at any due time; 0 if each one's second must be checked."""
        return 0 if self._config.slot_limit else self._room

    @property
    def _room(self) -> int:
        queue = self._topic.queue()
        return self._config.max_waiting - (queue.next_offset - self._write_queue.put_upto if queue else 0)
