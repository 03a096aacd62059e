"""Saving the broker's tables: topics, groups, offsets and RocketMQ's delay offsets, beside the loop and in order."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Iterable

from latermq.broker.config_files import (
    DELAY_OFFSETS_PATH,
    GROUPS_PATH,
    OFFSETS_PATH,
    TOPICS_PATH,
    DelayOffsetTable,
    Table,
    save_table,
)
from latermq.broker.topics import Topics
from latermq.clock import Clock
from latermq.errors import StoreError
from latermq.group.offsets import ConsumerOffsets
from latermq.group.subscriptions import SubscriptionGroups
from latermq.protocol.remoting.bodies import DataVersion, OffsetTable, SubscriptionGroupTable, TopicConfigTable
from latermq.store.checkpoint import TimerMarks
from latermq.store.disk import Disk
from latermq.store.message_store import MessageStore
from latermq.store.set_aside import BACKUP
from latermq.timer.timer_checkpoint import OWN_STATE, TimerCheckpoint, timer_checkpoint_file
from latermq.timer.timer_checkpoint import PATH as TIMER_CHECKPOINT_PATH
from latermq.timer.timers import slot_below


def do_all(works: Iterable[Callable[[], None]]) -> None:
    """Do each of these, whichever of them the disk fails; the first failure is raised then.

    What is left out would never be made up for: a table counts as saved from the moment that its copy was made.
    """
    failure: StoreError | None = None
    for work in works:
        try:
            work()
        except StoreError as error:
            failure = failure or error
    if failure is not None:
        raise failure


class Tables:
    """Knows which tables have changed since they were saved. Tables are written one file at a time, in order."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        store: MessageStore,
        topics: Topics,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        marks: Callable[[], dict[int, int]],
        unsound: Collection[str] = (),
    ) -> None:
        """`marks` are the delay levels' offsets below which everything is delivered.

        `unsound` are files that the start did not understand. The others are kept as it found them before they are
        replaced for the first time: should one be damaged, the next start has something to go by.
        """
        self._disk = disk
        self._clock = clock
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._marks = marks
        self._saved_marks: dict[int, int] = {}
        self._saved_timers: TimerMarks | None = None
        # Written beside the loop, and by it where a message waits for them.
        self._writing = threading.Lock()
        self._numbers = itertools.count()
        self._written_numbers: dict[str, int] = {}
        self._unkept = {TOPICS_PATH, GROUPS_PATH, OFFSETS_PATH}.difference(unsound)

    def savers(self) -> list[Callable[[], None]]:
        """What is left to do to save changed tables, all of it, beside the broker if need be: see `do_all`."""
        savers: list[Callable[[], None]] = []
        if self._topics.changed:
            topics = self._topics.table
            copy = TopicConfigTable(topicConfigTable=dict(topics.topicConfigTable), dataVersion=topics.dataVersion)
            savers.append(self._topics_saver(copy))
        if self._groups.changed:
            groups = self._groups.table
            group_copy = SubscriptionGroupTable(
                subscriptionGroupTable=dict(groups.subscriptionGroupTable),
                forbiddenTable=groups.forbiddenTable,
                dataVersion=groups.dataVersion,
            )
            savers.append(self._saver(self._groups, GROUPS_PATH, group_copy))
        if self._offsets.changed:
            snapshot = self.offsets_snapshot()
            savers.append(self._saver(self._offsets, OFFSETS_PATH, snapshot))
            # Those that were cut to what is flushed are saved whole by a later round.
            self._offsets.changed = not self._offsets.equals(snapshot)
        marks = self._marks()
        if marks != self._saved_marks:
            delays = DelayOffsetTable(offsetTable=marks, dataVersion=DataVersion(timestamp=self._clock.now_ms()))
            write = self._writer(DELAY_OFFSETS_PATH, delays)

            def save_marks() -> None:
                write()
                self._saved_marks = marks

            savers.append(save_marks)
        timers = self._store.saved_timer_marks
        if timers is not None and timers is not self._saved_timers:
            data = timer_checkpoint_file(
                TimerCheckpoint(
                    last_read_ms=slot_below(timers.wake_ms),
                    queue_offset=timers.put_upto,
                    master_queue_offset=timers.put_upto,
                    state_version=OWN_STATE,
                    version_ms=self._clock.now_ms(),
                )
            )

            def save_timers() -> None:
                with self._writing:
                    self._disk.replace(TIMER_CHECKPOINT_PATH, data)
                self._saved_timers = timers

            savers.append(save_timers)
        return savers

    def save(self) -> None:
        """Save changed tables now."""
        do_all(self.savers())

    def offsets_snapshot(self) -> OffsetTable:
        """The consumer offsets to store, none beyond what is flushed."""
        ends: dict[tuple[str, int], int] = {}

        def flushed_end(topic: str, queue_id: int) -> int:
            key = (topic, queue_id)
            if key not in ends:
                queue = self._store.find_queue(topic, queue_id)
                ends[key] = self._store.flushed_end(queue) if queue else 0
            return ends[key]

        return self._offsets.snapshot(self._clock.now_ms(), flushed_end)

    def _writer(self, path: str, table: Table) -> Callable[[], None]:
        """Writes a table's file, unless a newer state of the table was written meanwhile."""
        number = next(self._numbers)

        def write() -> None:
            with self._writing:
                if self._written_numbers.get(path, -1) < number:
                    self._keep_backup(path)
                    save_table(self._disk, path, table)
                    self._written_numbers[path] = number

        return write

    def _keep_backup(self, path: str) -> None:
        if path not in self._unkept:
            return
        self._unkept.discard(path)
        data = self._disk.read(path)
        if data:
            with contextlib.suppress(StoreError):  # the table itself matters more
                self._disk.replace(path + BACKUP, data)

    def _topics_saver(self, table: TopicConfigTable) -> Callable[[], None]:
        version = self._topics.version
        save_file = self._saver(self._topics, TOPICS_PATH, table)

        def save() -> None:
            save_file()
            self._topics.saved_version = max(self._topics.saved_version, version)

        return save

    def _saver(
        self, owner: Topics | SubscriptionGroups | ConsumerOffsets, path: str, table: Table
    ) -> Callable[[], None]:
        owner.changed = False
        write = self._writer(path, table)

        def save() -> None:
            try:
                write()
            except BaseException:
                owner.changed = True  # the next round tries again
                raise

        return save
