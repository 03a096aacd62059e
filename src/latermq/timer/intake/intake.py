"""The intake: follows the timer topic's queue and passes new timers to the write queue and the loader."""

import numpy as np

from latermq.arrays import Ints
from latermq.config import TimerConfig
from latermq.message.timer_code import CANCEL, CUT
from latermq.store.message_store import MessageStore
from latermq.timer.delivery.lateness import DELAY_BOUNDS_MS, Distribution
from latermq.timer.engine.interface import Units
from latermq.timer.engine.slot_order import SlotOrders
from latermq.timer.intake.loader import Loader
from latermq.timer.intake.settled import Settled
from latermq.timer.intake.timer_topic import TimerTopic
from latermq.timer.intake.write_queue import WriteQueue

READ_AT_ONCE = 16_384  # entries that one step reads from the queue: about 1 ms


class Intake:
    """Reads each entry of the timer topic once, in order, flushed or not."""

    def __init__(
        self,
        store: MessageStore,
        topic: TimerTopic,
        settled: Settled,
        write_queue: WriteQueue,
        loader: Loader,
        orders: SlotOrders,
        config: TimerConfig,
        *,
        read_from: int,
    ) -> None:
        self._store = store
        self._topic = topic
        self._settled = settled
        self._write_queue = write_queue
        self._loader = loader
        self._orders = orders
        self._config = config
        self._next = read_from
        self._new_from = topic.next_entry
        self.delays = Distribution(DELAY_BOUNDS_MS)  # delays requested by timers
        self.rows = 0

    @property
    def next_entry(self) -> int:
        """The entry to be read next."""
        return self._next

    @property
    def unread_rows(self) -> int:
        return max(0, self._topic.next_entry - self._next)

    def read(self) -> bool:
        """Read a piece of the queue; return whether there is more."""
        queue = self._topic.queue()
        if queue is None or self._write_queue.rows >= self._config.max_waiting:
            return False
        self._next = max(self._next, queue.min_offset)
        found = queue.array(self._next, READ_AT_ONCE)
        if not len(found):
            return False
        entries = np.arange(self._next, self._next + len(found), dtype=np.int64)
        self._next += len(found)
        self.rows += len(found)
        units = self._units(entries, found["offset"].astype(np.int64), found["size"].astype(np.int64), found["tags"])
        units = self._settled.waiting(units)
        self._write_queue.add(units, self._next)
        self._orders.note_added(units)
        self._loader.add(units)
        return self._next < queue.next_offset

    def read_all(self) -> None:
        """Read the whole queue, so that the caller sees every timer stored before the call."""
        while self.read():
            pass

    def _units(self, entries: Ints, physical: Ints, sizes: Ints, codes: Ints) -> Units:
        """Return the broker's own timers among these entries of the queue."""
        frontier = self._topic.frontier
        kinds, dues = self._topic.kinds_and_dues(codes.astype(np.int64), physical)
        timers = (kinds != CANCEL) & (kinds != CUT)
        # The last store time is used for all: they were stored a moment ago, and reading each one's time takes 0.2 µs.
        self.delays.add(dues[timers & (entries >= self._new_from)] - self._store.writer.last_store_timestamp_ms)
        near = frontier.is_near(entries, dues)
        frontier.note_far(dues[timers & ~near])
        timers &= near
        entries, physical, sizes, dues = entries[timers], physical[timers], sizes[timers], dues[timers]
        wakes, renews = self._topic.near_wakes(entries, dues, physical)
        return Units(entries, wakes, physical, sizes, renews)
