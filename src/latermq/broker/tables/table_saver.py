"""Saves the broker's tables in order and off the loop: topics, groups, offsets, modes and delay offsets."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from latermq.broker.messages.reply_budget import ReplyBudget
from latermq.broker.tables.config_files import (
    DELAY_OFFSETS_PATH,
    GROUPS_PATH,
    OFFSETS_PATH,
    REQUEST_MODES_PATH,
    TOPICS_PATH,
    UNUSED_PATH,
    UnusedNames,
    load_unused,
)
from latermq.broker.tables.entry_texts import EntryTexts
from latermq.broker.tables.topics import Topics
from latermq.clock import Clock
from latermq.config_json.groups import encode_group
from latermq.config_json.java_json import convert, encode_json
from latermq.config_json.offsets import DelayOffsetTableJson
from latermq.config_json.request_modes import RequestModeTableJson
from latermq.config_json.topics import DataVersionJson, encode_topic, encode_version
from latermq.errors import StoreError
from latermq.group.offsets import ConsumerOffsets
from latermq.group.request_modes import RequestModes
from latermq.group.subscriptions import SubscriptionGroups
from latermq.message.slots import slot_of
from latermq.store.checkpoint import TimerMarks
from latermq.store.files.disk import Disk
from latermq.store.files.set_aside import BACKUP
from latermq.store.message_store import MessageStore
from latermq.timer.apache_checkpoint import OWN_STATE, TimerCheckpoint, timer_checkpoint_file
from latermq.timer.apache_checkpoint import PATH as TIMER_CHECKPOINT_PATH
from latermq.timer.steps import Steps

Content = Callable[[], bytes]  # joins a file's content; for 50,000 groups that takes 5 ms, so it runs off the loop
_BLOCKS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The content of a file. Calling it joins the parts."""

    head: bytes
    texts: list[bytes]
    middle: bytes
    version: bytes

    def __call__(self) -> bytes:
        return b"".join((self.head, b",".join(self.texts), self.middle, self.version, b"}"))

    def within(self, budget: ReplyBudget) -> bytes:
        """The content as a reply. If it does not fit into a frame, it is rejected before it is joined."""
        budget.spend(sum(map(len, self.texts)) + len(self.texts) + len(self.middle))
        return self()


def run_all(works: Iterable[Callable[[], None]]) -> None:
    """Run all of these even if some fail, then raise the first failure.

    A skipped one would never be repeated, because a table counts as saved once its copy is made.
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
    """Tracks which tables have changed since they were saved. Tables are written one file at a time, in order."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        store: MessageStore,
        topics: Topics,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        modes: RequestModes,
        marks: Callable[[], dict[int, int]],
        damaged_paths: Collection[str] = (),
    ) -> None:
        """`marks` are the offsets of the delay levels below which everything is delivered.

        `damaged_paths` are files that could not be parsed at the start. The other files are backed up before they are
        replaced for the first time, so that the next start has a fallback if one is damaged.
        """
        self._disk = disk
        self._clock = clock
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._modes = modes
        self._marks = marks
        self._saved_marks: dict[int, int] = {}
        self._saved_timers: TimerMarks | None = None
        # Written off the loop, or on it if a message waits for them.
        self._write_lock = threading.Lock()
        self._numbers = itertools.count()
        self._written_numbers: dict[str, int] = {}
        self._backup_paths = {TOPICS_PATH, GROUPS_PATH, OFFSETS_PATH, REQUEST_MODES_PATH}.difference(damaged_paths)
        self._newest: dict[str, tuple[int, Content]] = {}
        self._topic_texts, self._group_texts = EntryTexts(encode_topic), EntryTexts(encode_group)
        # No client waits yet. From now on only changes are encoded.
        self._topics_content()
        self._groups_content()

    def savers(self, *, with_offsets: bool = True) -> list[Callable[[], None]]:
        """The work that saves all changed tables, which may run off the loop: see `run_all`.

        Offsets that changed since they were encoded are saved with their old values (`encode_offsets`).
        """
        savers: list[Callable[[], None]] = []
        save_unused = self._unused_saver()
        if self._topics.changed:
            savers.append(self._topics_saver(save_unused))
        if self._groups.changed:
            savers.append(self._saver(self._groups, GROUPS_PATH, self._groups_content(), save_unused))
        elif not savers and save_unused is not None:
            savers.append(save_unused)
        if with_offsets and self._offsets.changed:
            savers.append(self._saver(self._offsets, OFFSETS_PATH, self._offsets_content()))
            # Offsets that have changed since, or were limited to flushed messages, are saved by a later round.
            self._offsets.changed = self._offsets.stale_blocks > 0
        if self._modes.changed:
            modes = self._modes.copy()
            savers.append(
                self._saver(self._modes, REQUEST_MODES_PATH, lambda: encode_json(convert(modes, RequestModeTableJson)))
            )
        marks = self._marks()
        if marks != self._saved_marks:
            delays = DelayOffsetTableJson(offsets=marks, version=DataVersionJson(timestamp_ms=self._clock.now_ms()))
            write = self._writer(DELAY_OFFSETS_PATH, lambda: encode_json(delays))

            def save_marks() -> None:
                write()
                self._saved_marks = marks

            savers.append(save_marks)
        timers = self._store.waiting.saved_marks
        if timers is not None and timers is not self._saved_timers:
            data = timer_checkpoint_file(
                TimerCheckpoint(
                    last_read_ms=max(0, slot_of(timers.wake_ms)),
                    queue_offset=timers.put_upto,
                    master_queue_offset=timers.put_upto,
                    state_version=OWN_STATE,
                    version_ms=self._clock.now_ms(),
                )
            )

            def save_timers() -> None:
                with self._write_lock:
                    self._disk.replace(TIMER_CHECKPOINT_PATH, data)
                self._saved_timers = timers

            savers.append(save_timers)
        return savers

    def save(self) -> None:
        """Save changed tables now."""
        self.encode_offsets(self._offsets.stale_blocks)
        run_all(self.savers())

    def encode_offsets(self, blocks: int) -> None:
        """Encode this many blocks of changed consumer offsets for saving, none beyond the flushed messages."""
        self._offsets.encode(self._flushed_end, blocks)

    def encode_offsets_of(self, group: str, topics: Iterable[str]) -> Steps[None]:
        """Encode the offsets of a group in some topics, regardless of other changes."""
        for topic in topics:
            yield from self._offsets.encode_of(group, topic, self._flushed_end)

    def _flushed_end(self, topic: str, queue_id: int) -> int:
        queue = self._store.queues.find(topic, queue_id)
        return self._store.reader.flushed_end(queue) if queue else 0

    # The content of the files, also for replies to operators

    def topics_body(self, budget: ReplyBudget) -> bytes:
        """The table of topics."""
        return self._topics_content().within(budget)

    def topics_json(self) -> bytes:
        """The table of topics regardless of its size, for a registration."""
        return self._topics_content()()

    def groups_body(self, budget: ReplyBudget) -> bytes:
        """The table of groups."""
        return self._groups_content().within(budget)

    def offsets_body(self, budget: ReplyBudget) -> bytes:
        """The consumer offsets. If very many have just changed, some have the values that were saved last."""
        self.encode_offsets(_BLOCKS_AT_ONCE)
        return self._offsets_content().within(budget)

    def _topics_content(self) -> _Pieces:
        table, topics = self._topics.table, self._topics
        self._topic_texts.update(topics.unsaved, table.topics)
        topics.unsaved.clear()
        return _Pieces(
            b'{"topicConfigTable":{', self._topic_texts.all(), b'},"dataVersion":', encode_version(table.version)
        )

    def _groups_content(self) -> _Pieces:
        table, groups = self._groups.table, self._groups
        self._group_texts.update(groups.unsaved, table.groups)
        groups.unsaved.clear()
        return _Pieces(
            b'{"subscriptionGroupTable":{',
            self._group_texts.all(),
            b'},"forbiddenTable":%b,"dataVersion":' % encode_json(table.forbidden),
            encode_version(table.version),
        )

    def _offsets_content(self) -> _Pieces:
        texts, version = self._offsets.pieces(self._clock.now_ms())
        return _Pieces(b'{"offsetTable":{', texts, b'},"dataVersion":', encode_version(version))

    def _writer(self, path: str, content: Content) -> Callable[[], None]:
        """Write the newest state of a table's file, unless it is already written: many changes cause few writes."""
        self._newest[path] = next(self._numbers), content
        return self._writer_of_newest(path)

    def _writer_of_newest(self, path: str) -> Callable[[], None]:
        number = self._newest[path][0]

        def write() -> None:
            with self._write_lock:
                if self._written_numbers.get(path, -1) < number:
                    newest, content = self._newest[path]
                    self._back_up(path)
                    self._disk.replace(path, content())
                    self._written_numbers[path] = newest

        return write

    def _back_up(self, path: str) -> None:
        if path not in self._backup_paths:
            return
        self._backup_paths.discard(path)
        data = self._disk.read(path)
        if data:
            with contextlib.suppress(StoreError):  # the table itself matters more
                self._disk.replace(path + BACKUP, data)

    def load_unused(self) -> None:
        """Restore the unused auto-created names. Their time before removal starts again."""
        names = load_unused(self._disk)
        with_messages = {queue.topic for queue in self._store.queues}
        for topic in names.topics:
            if self._topics.find(topic) is not None and topic not in with_messages:
                self._topics.auto_created.add(b"", topic, unused=True)
        for group in names.groups:
            if self._groups.find(group) is not None:
                self._groups.auto_created.add(b"", group, unused=True)

    def _unused_saver(self) -> Callable[[], None] | None:
        """Save which topics and groups may be removed, if that has changed.

        It precedes these two: a topic listed by mistake after a crash would be lost together with its pending messages.
        """
        kinds = (self._topics.auto_created, self._groups.auto_created)
        if any(kind.changed for kind in kinds):
            names = UnusedNames(topics=kinds[0].unused, groups=kinds[1].unused)
            for kind in kinds:
                kind.changed = False
            return self._writer(UNUSED_PATH, lambda: encode_json(names))
        number = self._newest.get(UNUSED_PATH, (-1,))[0]
        return self._writer_of_newest(UNUSED_PATH) if self._written_numbers.get(UNUSED_PATH, -1) < number else None

    def _topics_saver(self, save_unused: Callable[[], None] | None) -> Callable[[], None]:
        version = self._topics.version
        save_file = self._saver(self._topics, TOPICS_PATH, self._topics_content(), save_unused)

        def save() -> None:
            save_file()
            self._topics.saved_version = max(self._topics.saved_version, version)

        return save

    def _saver(
        self,
        owner: Topics | SubscriptionGroups | ConsumerOffsets | RequestModes,
        path: str,
        content: Content,
        first: Callable[[], None] | None = None,
    ) -> Callable[[], None]:
        owner.changed = False
        write = self._writer(path, content)

        def save() -> None:
            try:
                if first is not None:
                    first()
                write()
            except BaseException:
                owner.changed = True  # the next round tries again
                raise

        return save
