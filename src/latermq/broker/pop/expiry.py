"""The end of invisible times: messages go to their next attempt or to the dead letters, with a journal record."""

from collections.abc import Callable, Iterable, Iterator

from latermq.broker.messages.long_polling import WaitingPulls
from latermq.broker.pop.copies import base_topic, dead_letter, next_attempt_topic, retry_copy
from latermq.broker.pop.pops import Pops, max_attempts
from latermq.broker.pop.positions import PopPositions
from latermq.broker.pop.waiting_pops import WaitingPops
from latermq.broker.tables.topics import UnsavedTopic
from latermq.broker.tables.writable_topics import WritableTopics
from latermq.clock import Clock
from latermq.errors import LaterMQError
from latermq.group.pop.operations import PopOperations
from latermq.group.pop.pop_journal import PopJournal
from latermq.group.pop.popped_queue import PoppedQueue
from latermq.group.pop.table import Due
from latermq.group.subscriptions import SubscriptionGroups
from latermq.message.names import DEAD_LETTER_PREFIX, is_topic, retry_topic, shown
from latermq.message.record import Message
from latermq.store.log_writer import Draft
from latermq.store.message_store import MessageStore
from latermq.timer.delivery.clock_guard import ClockGuard

MAX_MESSAGES = 256  # that one run copies: about 5 ms
MAX_BYTES = 1 << 20  # of copies in one block; a quarter of a segment if that is less
_RECORD_BYTES = 512  # of a copy besides its body and properties, at most
IDLE_MS = 1_000  # the longest time between two runs
FAILED_MS = 500  # until the next try if copies could not be written


class PopExpiry:
    """Copies messages whose time is up. A message that cannot be copied now stays in flight."""

    def __init__(
        self,
        store: MessageStore,
        operations: PopOperations,
        journal: PopJournal,
        positions: PopPositions,
        pops: Pops,
        groups: SubscriptionGroups,
        topics: WritableTopics,
        waiting_pulls: WaitingPulls,
        waiting_pops: WaitingPops,
        guard: ClockGuard,
        clock: Clock,
        expires_until: Callable[[], int],
        is_topic_pulled: Callable[[str, str], bool],
    ) -> None:
        """`expires_until` returns the log offset before which retention removes everything that is not needed.

        `is_topic_pulled` returns whether a connected member of a group pulls a topic.
        """
        self._store = store
        self._operations = operations
        self._table = operations.table
        self._journal = journal
        self._positions = positions
        self._pops = pops
        self._groups = groups
        self._topics = topics
        self._waiting_pulls = waiting_pulls
        self._waiting_pops = waiting_pops
        self._guard = guard
        self._clock = clock
        self._expires_until = expires_until
        self._is_topic_pulled = is_topic_pulled
        self._max_bytes = min(MAX_BYTES, store.writer.max_block_bytes // 4)
        self._expiring: Iterator[Due] | None = None  # in flight in segments that retention is about to remove
        self.needs_save = False  # a topic must be saved before copies are written to it
        self.failure = ""  # why copies could not be written, for operators
        self.revived = self.buried = self.lost = 0

    @property
    def is_urgent(self) -> bool:
        """Whether a pop or retention waits for the next run."""
        return bool(self._pops.exhausted) or self._expiring is not None

    def run(self) -> int:
        """Copy what is due, up to a limit, and return after how many milliseconds to run again."""
        if self._guard.is_holding:  # after a jump of the clock everything looks due
            return IDLE_MS
        now_ms = self._clock.now_ms()
        due, unblocked = self._operations.due(now_ms, MAX_MESSAGES)
        for queue in unblocked:
            self._waiting_pops.mark_group(queue.group, queue.topic)
            if self._pops.last_attempts(queue, now_ms):
                self._pops.exhausted[queue] = None
        exhausted, self._pops.exhausted = self._pops.exhausted, {}
        last = [
            self._table.one(queue, offset)
            for queue in exhausted
            if self._table.by_number.get(queue.number) is queue
            for offset in self._pops.last_attempts(queue, now_ms)
        ]
        before = self.revived + self.buried + self.lost
        try:
            is_done = self._copy(due, now_ms) if due else True
            is_done = (self._copy(last, now_ms, in_order=True) if last else True) and is_done
            is_done = self._release_some(now_ms) and is_done
            self._positions.commit()  # a lease that has ended is journalled too
        except LaterMQError as error:
            self.failure = error.remark
            is_done = False
        if not is_done:
            self._pops.exhausted |= exhausted
            # Others must not wait for the messages that cannot be copied now.
            return 0 if self.revived + self.buried + self.lost > before else FAILED_MS
        self.failure = ""
        if self._expiring is not None:
            return 0
        next_ms = self._operations.next_due_ms()
        return IDLE_MS if next_ms is None else max(0, min(next_ms - now_ms, IDLE_MS))

    def release_log(self) -> None:
        """Copy messages in flight that retention is about to remove, whatever their time. No attempt is counted.

        Some are copied now, the others in the next runs: retention waits for them.
        """
        until = self._expires_until()
        if until <= self._store.log.start:
            self._expiring = None
            return
        ends: dict[tuple[str, int], int] = {}
        for key, floor in self._table.held_floors().items():
            queue = self._store.queues.find(*key)
            entry = queue.entry(floor) if queue is not None else None
            if queue is not None and entry is not None and entry[0] < until:
                ends[key] = queue.offset_of_log(until)
        self._expiring = self._table.held_below(ends) if ends else None
        self._release_some(self._clock.now_ms())

    def _release_some(self, now_ms: int) -> bool:
        """Copy some of the messages that retention waits for, unless they left the table in the meantime."""
        held: list[Due] = []
        for one in self._expiring or ():
            held += [
                self._table.one(one.queue, offset) for offset in one.offsets if self._table.holds(one.queue, offset)
            ]
            if len(held) >= MAX_MESSAGES:
                break
        else:
            self._expiring = None
        if held and not self._copy(held, now_ms, is_forced=True):
            self._expiring = None  # retention asks again
            return False
        return True

    # Copies

    def _copy(self, due: Iterable[Due], now_ms: int, *, in_order: bool = False, is_forced: bool = False) -> bool:
        """Write the copies of these messages. Return False if some of them must stay in flight for now."""
        drafts: list[Draft] = []
        gone: list[Due] = []
        size_bytes = 0
        refused: dict[str, str] = {}
        refused_rows = []
        pulled: dict[str, bool] = {}  # by retry topic: a wide topic has many queues to look at
        for one in due:
            mask = 0
            for offset in one.offsets:
                draft = self._draft(one, offset, pulled, in_order=in_order, is_forced=is_forced)
                if draft is not None:
                    reason = refused.get(draft.topic)
                    if reason is None and not self._opens(draft.topic, refused):
                        reason = refused[draft.topic]
                    if reason is not None:
                        refused_rows.append(one)
                        break
                    drafts.append(draft)
                    size_bytes += len(draft.body) + len(draft.properties) + _RECORD_BYTES
                mask |= 1 << offset - one.first
                if size_bytes >= self._max_bytes:
                    gone.append(one._replace(mask=mask))
                    mask = 0
                    self._append(drafts, gone, now_ms)
                    drafts, gone, size_bytes = [], [], 0
            if mask:
                gone.append(one._replace(mask=mask))
        if gone:
            self._append(drafts, gone, now_ms)
        if refused:
            self._table.defer(refused_rows)
            self.failure = next(iter(refused.values()))
        return not refused

    def _append(self, drafts: list[Draft], gone: list[Due], now_ms: int) -> None:
        self._journal.append(drafts, gone, now_ms)
        buried = sum(draft.topic.startswith(DEAD_LETTER_PREFIX) for draft in drafts)
        self.buried += buried
        self.revived += len(drafts) - buried
        self.lost += sum(one.mask.bit_count() for one in gone) - len(drafts)
        for one in gone:
            self._positions.note(one.queue)
            self._waiting_pops.mark_group(one.queue.group, one.queue.topic)
        for topic in {draft.topic for draft in drafts}:
            self._waiting_pulls.mark_ready(topic, 0)

    def _opens(self, topic: str, refused: dict[str, str]) -> bool:
        """Whether copies can be written to a topic now. It is created and saved first."""
        try:
            self._topics.create_retry_topic(topic, 1, b"")
            self._store.queues.hold(topic, 0)
        except UnsavedTopic:
            self.needs_save = True
            refused[topic] = f"topic {topic!r} is being saved"
        except LaterMQError as error:
            refused[topic] = error.remark
        return topic not in refused

    def _draft(
        self, one: Due, offset: int, pulled: dict[str, bool], *, in_order: bool, is_forced: bool
    ) -> Draft | None:
        """Return the copy of a message, or None if the message is no longer in the log."""
        message = self._message(one.queue, offset)
        if message is None:
            return None
        group = self._groups.find(one.queue.group)
        attempts = max_attempts(group.max_retries if group is not None else None)
        name = one.queue.group
        if in_order or (is_forced and one.queue.ordered):
            reason = "its consumer held it until it expired" if is_forced else _failed(one.deliveries + 1, attempts)
            return dead_letter(name, message, one.deliveries + 1, reason)
        is_counted = not (one.is_suspended or is_forced)
        if is_counted and message.failures >= attempts:
            return dead_letter(name, message, message.failures, _failed(message.failures, attempts))
        topic = next_attempt_topic(name, message)
        if not is_topic(topic):  # waiting for such a topic would keep the log indefinitely
            return dead_letter(name, message, message.failures, f"it cannot be retried in {shown(topic)}")
        if one.queue.topic != retry_topic(name):  # a pop has taken it from there, so no member pulls it
            if topic not in pulled:
                pulled[topic] = self._is_topic_pulled(name, base_topic(name, message))
            if pulled[topic]:  # members that pull do not read the retry topics of pops, but pops read theirs
                topic = retry_topic(name)
        return retry_copy(name, message, one.pop_ms, topic, is_counted=is_counted)

    def _message(self, queue: PoppedQueue, offset: int) -> Message | None:
        stored = self._store.queues.find(queue.topic, queue.queue_id)
        entry = stored.entry(offset) if stored is not None else None
        return self._store.reader.read_message(entry[0]) if entry is not None else None

    def bury(self, due: Due, reason: str) -> None:
        """Write a message to the dead letters, because its consumer wants it.

        Raises UnsavedTopic, or an error if there is no space. Then nothing has changed.
        """
        message = self._message(due.queue, due.first)
        drafts = []
        if message is not None:
            failures = max(message.failures, due.deliveries + 1)
            draft = dead_letter(due.queue.group, message, failures, reason or "its consumer gave up on it")
            self._topics.create_retry_topic(draft.topic, 1, b"")
            drafts.append(draft)
        self._append(drafts, [due], self._clock.now_ms())

    def statistics(self) -> dict[str, int]:
        """Messages whose time was up, since the start."""
        return {"revived_messages": self.revived, "buried_messages": self.buried, "lost_in_flight": self.lost}


def _failed(failures: int, attempts: int) -> str:
    return f"attempt {failures} failed, the limit is {attempts} attempts"
