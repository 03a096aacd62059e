"""Pops: reads messages of a topic and of its retry topics for one group, and notes that they are in flight."""

from collections.abc import Callable, Iterable
from itertools import chain, islice
from struct import Struct

from latermq.broker.messages.progress import ConsumerProgress
from latermq.broker.messages.reader import MessageReader
from latermq.broker.messages.write_gate import WriteGate
from latermq.broker.pop.copies import own_retries
from latermq.broker.pop.pop_request import Popped, PoppedPart, PopRequest
from latermq.broker.pop.positions import PopPositions
from latermq.broker.tables.topics import Topics
from latermq.clock import Clock
from latermq.config import BrokerConfig
from latermq.errors import InvalidParameter, NoPermission
from latermq.group.filters import EVERYTHING, MessageFilter
from latermq.group.pop.handles import pop_retry_topic
from latermq.group.pop.operations import InFlightFull, Outcome, PopOperations
from latermq.group.pop.popped_queue import PoppedQueue
from latermq.group.subscriptions import SubscriptionGroups
from latermq.message.names import retry_topic
from latermq.message.properties import RETRY_TOPIC
from latermq.message.record import record_property
from latermq.model.group import Group
from latermq.model.topic import READ, Topic
from latermq.store.log_reader import LogReader
from latermq.store.queues.consume_queue import ConsumeQueue
from latermq.store.queues.queue_table import OWN_TOPICS

MAX_MESSAGES = 32  # of one pop: a property of the protocol, Apache's broker refuses more
RETRIES_FIRST = 0.2  # the share of pops that look at retries first
ALL_QUEUES = -1
_MAX_QUEUES = 4_096  # that one pop looks at: 2 ms
_MAX_PAIRS = 10_000  # of a group and a topic, for which `_Pair` is remembered: 5 MB
_SIZE_AND_QUEUE_OFFSET = Struct(">I16xq")


class _Pair:
    """What pops of a group from a topic have in common: their retry topics, and the queue that the next one begins at.

    Notifications have a queue of their own: a client that pops after each would otherwise skip every other queue.

    Building the names takes 1 µs.
    """

    __slots__ = ("group_retries", "next_asked", "next_queue", "retries")

    def __init__(self, group: str, topic: str) -> None:
        self.next_queue = self.next_asked = 0
        self.group_retries = retry_topic(group)
        self.retries = pop_retry_topic(group, topic), pop_retry_topic(group, topic, is_v2=True)


class Pops:
    """Serves pops. The caller journals them before it answers."""

    def __init__(
        self,
        operations: PopOperations,
        positions: PopPositions,
        reader: MessageReader,
        log_reader: LogReader,
        progress: ConsumerProgress,
        topics: Topics,
        groups: SubscriptionGroups,
        gate: WriteGate,
        clock: Clock,
        settings: BrokerConfig,
        *,
        random_fraction: Callable[[], float],
        is_pulled: Callable[[str, str, int], bool],
    ) -> None:
        """`is_pulled` returns whether a connected member of a group pulls a queue."""
        self._operations = operations
        self._table = operations.table
        self._positions = positions
        self._reader = reader
        self._log_reader = log_reader
        self._queues = log_reader.queues.by_key
        self._progress = progress
        self._topics = topics
        self._groups = groups
        self._gate = gate
        self._now_ms = clock.now_ms
        self._max_bytes = int(settings.pull_batch)
        self._random_fraction = random_fraction
        self._is_pulled = is_pulled
        self.exhausted: dict[PoppedQueue, None] = {}  # popped in order, with messages for the dead letters
        self.popped = 0
        self._pairs: dict[tuple[str, str], _Pair] = {}  # by group and topic

    def check_topic(self, topic: str, queue_id: int) -> Topic:
        """Return a topic that may be popped from. The order of the checks is that of Apache's broker."""
        config = self._topics.require(topic)
        if topic in OWN_TOPICS or not config.permissions & READ:
            raise NoPermission(f"topic {topic!r} is not readable", hint="Change its permission with updateTopic -p 6")
        if not ALL_QUEUES <= queue_id < config.read_queues:
            raise InvalidParameter(
                f"topic {topic!r} has {config.read_queues} queues to read from, none with the id {queue_id}",
                hint=f"Pop from all queues with {ALL_QUEUES}",
            )
        return config

    def check_group(self, group: str, by: bytes) -> Group:
        """Return a group that may consume; `by` is the host for which it is created if it does not exist."""
        config = self._groups.require(group, by)
        if not config.can_consume:
            raise NoPermission(
                f"consumer group {group!r} may not consume", hint="Enable it with updateSubGroup -s true"
            )
        return config

    def check_again(self, request: PopRequest, by: bytes) -> None:
        """Check a request that has waited: its group and topic may have been deleted or closed since."""
        self.check_topic(request.topic, request.queue_id)
        self.check_group(request.group, by)

    def pop(self, request: PopRequest) -> Popped:
        """Pop messages, or none if there are none. Raises PollingFull if too many are in flight."""
        self._gate.check()
        now_ms = self._now_ms()
        popped = Popped(request, now_ms, now_ms, request.max_messages, self._max_bytes)
        if request.is_ordered:
            self._search_in_order(popped)
        else:
            self._search(popped)
        if popped.parts:
            self._deliver(popped)
        elif popped.is_full:
            raise InFlightFull(
                f"too many messages of topic {request.topic!r} are in flight",
                hint="Acknowledge messages, or wait until they are visible",
            )
        return popped

    def has_messages(self, request: PopRequest) -> bool:
        """Whether a pop would probably find messages. Filters are not considered."""
        pair = self._pair(request)
        own = [(request.topic, queue_id) for queue_id in self._asked_queue_ids(request, pair)]
        for topic, queue_id in own + self._retry_places(request, pair):
            stored = self._queues.get((topic, queue_id))
            if stored is None or self._is_pulled(request.group, topic, queue_id):
                continue
            queue = self._operations.find(request.group, topic, queue_id)
            if queue is not None and request.is_ordered:
                redelivery = self._operations.redelivery(queue, self._now_ms(), request.attempt)
                if redelivery is None:
                    continue
                if redelivery.offsets:
                    return True
            if stored.next_offset > (
                self._table.next_of(queue) if queue is not None else self._start(request, topic, stored)
            ):
                return True
        return False

    # Which queues

    def _queue_ids(self, request: PopRequest, pair: _Pair) -> Iterable[int]:
        """Return the queues of a pop. It seldom needs them all, so the next pop begins with the next queue.

        Pops of a backlog then read the log in its order, whose pages and cache lines have messages of all queues.
        """
        if request.queue_id >= 0:
            return (request.queue_id,)
        count = self._topics.require(request.topic).read_queues
        start = pair.next_queue if pair.next_queue < count else 0
        pair.next_queue = start + 1
        return islice(chain(range(start, count), range(start)), _MAX_QUEUES)

    def _asked_queue_ids(self, request: PopRequest, pair: _Pair) -> Iterable[int]:
        """Return the queues to look at for a notification, which needs no turns: all, or as many at once as a pop."""
        if request.queue_id >= 0:
            return (request.queue_id,)
        count = self._topics.require(request.topic).read_queues
        start = pair.next_asked if pair.next_asked < count else 0
        end = start + _MAX_QUEUES
        pair.next_asked = end if end < count else 0
        return range(start, min(end, count))

    def _pair(self, request: PopRequest) -> _Pair:
        key = request.group, request.topic
        pair = self._pairs.get(key)
        if pair is None:
            if len(self._pairs) >= _MAX_PAIRS:
                self._pairs.clear()
            pair = self._pairs[key] = _Pair(*key)
        return pair

    def _retry_places(self, request: PopRequest, pair: _Pair) -> list[tuple[str, int]]:
        places: list[tuple[str, int]] = []
        if not request.is_ordered:
            topics = self._topics.table.topics
            for name in pair.retries:
                config = topics.get(name)
                if config is not None:
                    places += [(config.name, queue_id) for queue_id in range(min(config.read_queues, _MAX_QUEUES))]
        return places

    def _search(self, popped: Popped) -> None:
        request = popped.request
        pair = self._pair(request)
        if pair.group_retries in self._topics.table.topics:
            self._adopt_retries(request, popped.now_ms)
        retries_first = self._random_fraction() < RETRIES_FIRST
        if retries_first:
            self._search_retries(popped, pair)
        for queue_id in self._queue_ids(request, pair):
            if popped.left <= 0:  # what the other queues hold would cost 1 µs for each, and clients do not use it
                break
            self._look(popped, request.topic, queue_id, request.message_filter)
        if not popped.parts and request.queue_id < 0 and self._topics.require(request.topic).read_queues > _MAX_QUEUES:
            popped.is_at_end = False  # there are others
        if not retries_first and popped.left > 0:
            self._search_retries(popped, pair)

    def _search_retries(self, popped: Popped, pair: _Pair) -> None:
        # Without the request's filter: the group received these messages before.
        request = popped.request
        places = self._retry_places(request, pair)
        is_ambiguous = places and ("_" in request.group or "_" in request.topic)
        for topic, queue_id in places:
            self._look(popped, topic, queue_id, own_retries(request.group, topic) if is_ambiguous else EVERYTHING)

    # One queue

    def _start(self, request: PopRequest, topic: str, stored: ConsumeQueue) -> int:
        """Return where a group begins in a queue that it has not popped from yet."""
        if topic != request.topic:
            return max(stored.min_offset, self._progress.committed(request.group, topic, stored.queue_id))
        offset = self._progress.committed(request.group, topic, stored.queue_id)
        if offset >= 0:
            return min(max(offset, stored.min_offset), stored.next_offset)
        return max(stored.min_offset, stored.next_offset - 1) if request.from_end else stored.min_offset

    def _look(self, popped: Popped, topic: str, queue_id: int, message_filter: MessageFilter) -> None:
        """Look for messages in one queue."""
        stored = self._queues.get((topic, queue_id))
        if stored is None or stored.next_offset == stored.min_offset:
            return
        request, end = popped.request, stored.next_offset
        group = request.group
        if self._is_pulled(group, topic, queue_id):
            return
        queue = self._table.queues.get((group, topic, queue_id))
        if queue is None:
            offset = self._start(request, topic, stored)
        elif queue.ordered:  # also if the group is no longer an ordered one
            self._look_again(popped, queue)
            return
        else:
            offset = self._table.positions.next[queue.number]
            if not stored.min_offset <= offset <= end:
                offset = self._positions.skip_lost(queue, stored)
        if offset == end:
            return
        count = popped.left
        if count <= 0 or popped.left_bytes <= 0:
            popped.rest += end - offset
            popped.is_at_end = False
            return
        if queue is None:
            queue = self._positions.open(group, topic, queue_id, offset)
        room = self._operations.room(queue) - (request.max_messages - count)
        if room < count:
            count = room
            if count <= 0:
                popped.is_full = True
                return
        pieces, messages, next_offset, _ = self._reader.fetch(stored, offset, count, message_filter, popped.left_bytes)
        popped.rest += end - next_offset
        if next_offset < end:
            popped.is_at_end = False
        if messages:
            is_run = next_offset - offset == messages  # nothing was filtered
            offsets = range(offset, next_offset) if is_run else _offsets_of(pieces)
            popped.take(PoppedPart(queue, offsets, pieces, next_offset))
        else:  # all of it was filtered
            self._operations.advance(queue, next_offset)
            self._positions.note(queue)

    def _adopt_retries(self, request: PopRequest, now_ms: int) -> None:
        """Hand messages that consumers of the group sent back to its retry topic, `%RETRY%group`, to pops.

        A handle cannot name that topic. So the messages of the requested topic at its head become visible at once
        in the topic's own retry topic, with their number of attempts.
        """
        name = retry_topic(request.group)
        config = self._topics.find(name)
        if config is None:
            return
        for queue_id in range(min(config.read_queues, _MAX_QUEUES)):
            stored = self._queues.get((name, queue_id))
            if stored is None or self._is_pulled(request.group, name, queue_id):
                continue
            queue = self._operations.find(request.group, name, queue_id)
            start = self._table.next_of(queue) if queue is not None else self._start(request, name, stored)
            start = max(start, stored.min_offset)
            foreign, offsets = self._head_run(stored, start, request)
            if foreign or offsets:
                queue = queue or self._positions.open(request.group, name, queue_id, start)
                self._operations.advance(queue, start + foreign)
                self._positions.note(queue)
                count = self._operations.room(queue)
                self._release(queue, offsets[:count], now_ms)

    def _head_run(self, stored: ConsumeQueue, start: int, request: PopRequest) -> tuple[int, list[int]]:
        """Return how many messages of other groups are at the head, and the offsets of the requested topic after them.

        Pops of group `a` from topic `b` have the same retry topic as the pulling members of group `a_b`.
        """
        is_own = own_retries(request.group, stored.topic).record_matches
        assert is_own is not None
        foreign = 0
        offsets: list[int] = []
        for offset in range(start, min(start + MAX_MESSAGES, stored.next_offset)):
            entry = stored.entry(offset)
            record = self._log_reader.log.read(entry[0], entry[1]) if entry is not None else b""
            if not is_own(record) and not offsets:
                foreign += 1
            elif is_own(record) and record_property(record, RETRY_TOPIC.encode()) == request.topic.encode():
                offsets.append(offset)
            else:
                break
        return foreign, offsets

    def _release(self, queue: PoppedQueue, offsets: list[int], now_ms: int) -> None:
        """Let messages become visible at once, without counting an attempt."""
        if offsets:
            pop_ms = self._operations.pop(queue, offsets, offsets[-1] + 1, now_ms, 0)
            for offset in offsets:
                changed = self._operations.change(queue, offset, pop_ms, now_ms, 0, is_suspended=True)
                assert changed.outcome is Outcome.DONE

    # In order

    def _search_in_order(self, popped: Popped) -> None:
        request = popped.request
        queue_ids = list(self._queue_ids(request, self._pair(request)))
        if request.attempt:
            repeated = [queue_id for queue_id in queue_ids if self._is_same_attempt(request, queue_id)]
            queue_ids = repeated or queue_ids
        for queue_id in queue_ids:
            self._look_in_order(popped, queue_id)

    def _is_same_attempt(self, request: PopRequest, queue_id: int) -> bool:
        queue = self._operations.find(request.group, request.topic, queue_id)
        # The attempt is compared first: a wide topic has many queues.
        if queue is None or not queue.ordered or self._table.positions.attempt[queue.number] != request.attempt:
            return False
        redelivery = self._operations.redelivery(queue, self._now_ms(), request.attempt)
        return redelivery is not None and redelivery.is_repeat

    def _look_in_order(self, popped: Popped, queue_id: int) -> None:
        request = popped.request
        queue = self._operations.find(request.group, request.topic, queue_id)
        if queue is not None and queue.held > queue.ordered:
            return  # popped before the group became an ordered one: wait until nothing of that is in flight
        self._look(popped, request.topic, queue_id, request.message_filter)

    def _look_again(self, popped: Popped, queue: PoppedQueue) -> None:
        """Look for messages that were popped in order and not acknowledged. They come before all others."""
        if popped.left <= 0:
            return
        redelivery = self._operations.redelivery(queue, popped.now_ms, popped.request.attempt)
        if redelivery is None:
            return
        if not redelivery.is_repeat and self.last_attempts(queue, popped.now_ms):
            self.exhausted[queue] = None  # such a message goes to the dead letters first
            return
        offsets = redelivery.offsets if redelivery.is_repeat else redelivery.offsets[: popped.left]
        stored = self._queues.get((queue.topic, queue.queue_id))
        found: dict[int, bytes] = {}
        for offset in offsets:
            entry = stored.entry(offset) if stored is not None else None
            if entry is not None:
                found[offset] = self._log_reader.log.read(entry[0], entry[1])
            else:  # it is no longer in the log
                self._operations.ack(queue, offset, self._table.one(queue, offset).pop_ms)
        if found:
            popped.take(PoppedPart(queue, list(found), list(found.values()), self._table.next_of(queue)))

    def last_attempts(self, queue: PoppedQueue, now_ms: int) -> list[int]:
        """Return the visible messages of a queue popped in order that have no other attempt."""
        group = self._groups.find(queue.group)
        attempts = max_attempts(group.max_retries if group is not None else None)
        rows = self._table.rows
        return [
            offset
            for offset, row in self._table.ordered_rows(queue)
            if rows.visible_ms[row] <= now_ms
            and rows.count[row] + 1 >= attempts
            and not self._table.one(queue, offset).is_suspended
        ]

    # The answer

    def _deliver(self, popped: Popped) -> None:
        """Note all messages as in flight, with one pop time."""
        request, operations, now_ms, pop_ms = popped.request, self._operations, popped.now_ms, popped.now_ms
        for part in popped.parts:
            earliest_ms = operations.earliest_pop_ms(part.queue)
            if earliest_ms > pop_ms:
                pop_ms = earliest_ms
        popped.pop_ms = pop_ms
        for part in popped.parts:
            queue, offsets, next_offset = part.queue, part.offsets, part.next_offset
            if request.is_ordered or queue.ordered:
                self._positions.note(queue)
                own_ms, part.counts = operations.pop_in_order(
                    queue, offsets, next_offset, now_ms, request.invisible_ms, request.attempt, request.lease, pop_ms
                )
            else:
                if offsets[0] != self._table.positions.next[queue.number]:
                    self._positions.note(queue)  # filtered messages before it; otherwise a pop does not move the floor
                own_ms = operations.pop(
                    queue, offsets, next_offset, now_ms, request.invisible_ms, request.lease, pop_ms
                )
            assert own_ms == pop_ms, "a pop has one time"
            self.popped += len(offsets)

    def give_back(self, popped: Popped) -> None:
        """Let messages become visible at once, because their answer could not be sent. No attempt is counted."""
        now_ms = self._now_ms()
        for part in popped.parts:
            for offset in part.offsets:
                self._operations.change(part.queue, offset, popped.pop_ms, now_ms, 0, is_suspended=True)
            self._positions.note(part.queue)

    def statistics(self) -> dict[str, int]:
        return {"popped_messages": self.popped, "popped_pairs": len(self._pairs)}


def max_attempts(max_retries: int | None) -> int:
    """Return how often a message is delivered before it becomes a dead letter."""
    return max(0, 16 if max_retries is None else max_retries) + 1


def _offsets_of(pieces: list[bytes]) -> list[int]:
    """Return the queue offsets of records."""
    offsets = []
    for piece in pieces:
        at = 0
        while at < len(piece):
            size, offset = _SIZE_AND_QUEUE_OFFSET.unpack_from(piece, at)
            offsets.append(offset)
            at += size
    return offsets
