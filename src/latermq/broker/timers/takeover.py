"""A start without a checkpoint, as with a RocketMQ store: other files show which waiting messages were delivered."""

from collections import Counter

from latermq.broker.tables.config_files import DELAY_OFFSETS_PATH, load_table
from latermq.broker.tables.known_ends import delivered_until_ms
from latermq.message.entry_id import MAX_LEVELS
from latermq.message.names import SCHEDULE_TOPIC, TIMER_TOPIC
from latermq.model.offset_table import DelayOffsetTable
from latermq.store.files.disk import Disk
from latermq.store.files.set_aside import Trouble
from latermq.store.message_store import MessageStore
from latermq.store.ranges import RangeSet
from latermq.timer.apache_import import entries_settled_by_apache
from latermq.timer.far.far_names import FarNames


def adopt_delay_offsets(disk: Disk, store: MessageStore, troubles: list[Trouble]) -> None:
    """Read the delivered messages of delay levels from RocketMQ's file. Later deliveries are found in the log."""
    table = load_table(disk, DELAY_OFFSETS_PATH, DelayOffsetTable, troubles)
    for level, offset in table.offsets.items():
        queue = store.queues.find(SCHEDULE_TOPIC, level - 1)
        if queue is not None and 1 <= level <= MAX_LEVELS:
            delivered = store.waiting.delivered.setdefault(level, RangeSet())
            delivered.forget_below(max(queue.min_offset, min(offset, queue.next_offset)))


def adopt_settled_timers(disk: Disk, store: MessageStore, far_names: FarNames) -> bool:
    """Read the delivered timers from RocketMQ's files, before the engine replaces these files.

    Return whether the pending timers must be counted again. If only RocketMQ has used the store, none were counted when
    it was opened.
    """
    waiting = store.waiting
    done = entries_settled_by_apache(disk, store.reader)
    is_uncounted = not waiting.scheduled and not far_names.upto
    waiting.delivered.setdefault(0, RangeSet()).add_ranges(done)
    return len(done) > 0 or is_uncounted


def count_far_timers(disk: Disk, store: MessageStore, far_names: FarNames) -> Counter[str]:
    """Count the pending timers per topic whose records have left the log. Only their names are left to count."""
    queue = store.queues.find(TIMER_TOPIC, 0)
    delivered = store.waiting.delivered.get(0, RangeSet())
    waiting = far_names.waiting(queue.min_offset if queue else 0, delivered_until_ms(disk))
    return Counter(topic for topic, entry in waiting if entry not in delivered)
