"""Saving the broker's tables: topics, groups, offsets and RocketMQ's delay offsets, beside the loop and in order."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from latermq.broker.messages.answer_room import AnswerRoom
from latermq.broker.tables.config_files import (
    DELAY_OFFSETS_PATH,
    GROUPS_PATH,
    OFFSETS_PATH,
    TOPICS_PATH,
    UNUSED_PATH,
    UnusedNames,
    load_unused,
)
from latermq.broker.tables.entry_texts import EntryTexts
from latermq.broker.tables.topics import Topics
from latermq.clock import Clock
from latermq.config_json.groups import encode_group
from latermq.config_json.java_json import encode_json
from latermq.config_json.offsets import DelayOffsetTableJson
from latermq.config_json.topics import DataVersionJson, encode_topic, encode_version
from latermq.errors import StoreError
from latermq.group.offsets import ConsumerOffsets
from latermq.group.subscriptions import SubscriptionGroups
from latermq.message.slots import slot_of
from latermq.store.checkpoint import TimerMarks
from latermq.store.files.disk import Disk
from latermq.store.files.set_aside import BACKUP
from latermq.store.message_store import MessageStore
from latermq.timer.apache_checkpoint import OWN_STATE, TimerCheckpoint, timer_checkpoint_file
from latermq.timer.apache_checkpoint import PATH as TIMER_CHECKPOINT_PATH
from latermq.timer.steps import Steps

Content = Callable[
    [], bytes
]  # joins what a file holds; for 50,000 groups that takes 5 ms, so it is done beside the loop
_BLOCKS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class _Pieces:
    """What a file holds; calling it joins it."""

    head: bytes
    texts: list[bytes]
    middle: bytes
    version: bytes

    def __call__(self) -> bytes:
        return b"".join((self.head, b",".join(self.texts), self.middle, self.version, b"}"))

    def within(self, room: AnswerRoom) -> bytes:
        """The same as an answer; one that fits no frame is refused before it is joined."""
        room.take(sum(map(len, self.texts)) + len(self.texts) + len(self.middle))
        return self()


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
        self._newest: dict[str, tuple[int, Content]] = {}
        self._topic_texts, self._group_texts = EntryTexts(encode_topic), EntryTexts(encode_group)
        # Here nobody waits yet; from now on only what changes is encoded.
        self._topics_content()
        self._groups_content()

    def savers(self, *, with_offsets: bool = True) -> list[Callable[[], None]]:
        """What is left to do to save changed tables, all of it, beside the broker if need be: see `do_all`.

        Of offsets that changed since they were encoded the file gets what it had (`encode_offsets`).
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
            # Those that changed meanwhile or were cut to what is flushed are saved by a later round.
            self._offsets.changed = self._offsets.stale_blocks > 0
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
                with self._writing:
                    self._disk.replace(TIMER_CHECKPOINT_PATH, data)
                self._saved_timers = timers

            savers.append(save_timers)
        return savers

    def save(self) -> None:
        """Save changed tables now."""
        self.encode_offsets(self._offsets.stale_blocks)
        do_all(self.savers())

    def encode_offsets(self, blocks: int) -> None:
        """Make so many blocks of changed consumer offsets ready to be saved, none beyond what is flushed."""
        self._offsets.encode(self._flushed_end, blocks)

    def encode_offsets_of(self, group: str, topics: Iterable[str]) -> Steps[None]:
        """The same for a group in some topics, whatever else has changed."""
        for topic in topics:
            yield from self._offsets.encode_of(group, topic, self._flushed_end)

    def _flushed_end(self, topic: str, queue_id: int) -> int:
        queue = self._store.queues.find(topic, queue_id)
        return self._store.reader.flushed_end(queue) if queue else 0

    # What the files hold, also as answers to operators

    def topics_body(self, room: AnswerRoom) -> bytes:
        """The table of topics."""
        return self._topics_content().within(room)

    def topics_json(self) -> bytes:
        """The same however long it is, as a registration tells it."""
        return self._topics_content()()

    def groups_body(self, room: AnswerRoom) -> bytes:
        """The table of groups."""
        return self._groups_content().within(room)

    def offsets_body(self, room: AnswerRoom) -> bytes:
        """The consumer offsets; where very many have just changed, some of them as they were saved last."""
        self.encode_offsets(_BLOCKS_AT_ONCE)
        return self._offsets_content().within(room)

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
        """Writes a table's file in its newest state, unless that was done meanwhile: many changes make few writes."""
        self._newest[path] = next(self._numbers), content
        return self._writer_of_newest(path)

    def _writer_of_newest(self, path: str) -> Callable[[], None]:
        number = self._newest[path][0]

        def write() -> None:
            with self._writing:
                if self._written_numbers.get(path, -1) < number:
                    newest, content = self._newest[path]
                    self._keep_backup(path)
                    self._disk.replace(path, content())
                    self._written_numbers[path] = newest

        return write

    def _keep_backup(self, path: str) -> None:
        if path not in self._unkept:
            return
        self._unkept.discard(path)
        data = self._disk.read(path)
        if data:
            with contextlib.suppress(StoreError):  # the table itself matters more
                self._disk.replace(path + BACKUP, data)

    def load_unused(self) -> None:
        """Take over what was auto-created before and nobody has used; it has as long again as it had."""
        names = load_unused(self._disk)
        with_messages = {queue.topic for queue in self._store.queues}
        for topic in names.topics:
            if self._topics.find(topic) is not None and topic not in with_messages:
                self._topics.auto_created.add(b"", topic, unused=True)
        for group in names.groups:
            if self._groups.find(group) is not None:
                self._groups.auto_created.add(b"", group, unused=True)

    def _unused_saver(self) -> Callable[[], None] | None:
        """Saves which topics and groups may go, if that is not done yet.

        It comes before these two: a topic that it names wrongly after a crash would be lost with what waits for it.
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
        owner: Topics | SubscriptionGroups | ConsumerOffsets,
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
