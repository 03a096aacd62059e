"""Long polling: pulls that found nothing wait here until a message arrives or their timeout expires.

A waiting pull stores only the fields that it needs, neither its request nor a closure over it. Pulls are retried in
slices, queue by queue in turn, so that any number of waiting pulls leaves the event loop responsive.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from latermq.broker.messages.filter_usage import FilterUsage
from latermq.errors import Busy, LaterMQError
from latermq.group.filters import MessageFilter

SLICE_PULLS = 128  # retried per slice, before other work runs: 2 ms, or 10 ms if each returns a full batch
TURN_PULLS = 32  # of these from one queue, before the next queue
TICK_S = 0.5  # precision of the timeouts
EVICTION_DIVISOR = 400  # at the limit, 1/400 of the pulls are evicted at once, because finding the clients takes time

_EXPIRED = -1  # as a deadline: it has passed
_Key = TypeVar("_Key")
_Queue = tuple[str, int]


class Client(Protocol):
    """The connection of a pull, as far as long polling uses it."""

    @property
    def is_paused(self) -> bool:
        """Whether the peer has unread data."""
        ...


class WaitingPull:
    """One waiting pull: its client, and what it requests."""

    __slots__ = (
        "client",
        "deadline",
        "encoding",
        "filter_bytes",
        "first_offset",
        "group",
        "is_deferred",
        "max_bytes",
        "max_messages",
        "message_filter",
        "offset",
        "opaque",
        "queue",
        "replier",
    )

    def __init__(
        self,
        client: Client,
        replier: "PullReplier",
        opaque: int,
        encoding: int,
        group: str,
        queue: tuple[str, int],
        offset: int,
        max_messages: int,
        max_bytes: int,
        message_filter: MessageFilter,
    ) -> None:
        """Pass the group and topic strings of the tables: sharing them costs no memory."""
        self.client = client
        self.replier = replier
        self.opaque = opaque
        self.encoding = encoding
        self.group = group
        self.queue = queue
        self.first_offset = self.offset = offset
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.message_filter = message_filter
        self.filter_bytes = 0  # size of its filter if this pull was the first to use it, else 0
        self.deadline = _EXPIRED  # in ticks
        self.is_deferred = False  # its reply has to wait until the client has read its data


class PullReplier(Protocol):
    """Sends the replies of waiting pulls."""

    def resume(self, pull: WaitingPull, must_answer: bool) -> bool:
        """Try the pull again; return whether it was answered."""
        ...

    def refuse(self, pull: WaitingPull, error: LaterMQError) -> None:
        """Answer with an error."""
        ...


CallSoon = Callable[[Callable[[], None]], object]
_Source = _Queue | Client | int


class Arrivals(Protocol):
    """Waiting requests other than pulls, which new messages also wake."""

    @property
    def topics(self) -> Mapping[str, object]:
        """The topics that they wait for."""
        ...

    def mark_ready(self, topic: str, queue_id: int) -> None:
        """Mark a queue that has a new message."""
        ...

    def wake(self) -> None:
        """Try the requests that wait for marked queues."""
        ...


class WaitingPulls:
    """Waiting pulls by queue, by client and by deadline. A queue is retried once for any number of new messages."""

    def __init__(
        self,
        max_waiting: int,
        max_per_client: int,
        max_filter_bytes: int,
        slice_work: int = 1 << 20,
        call_soon: CallSoon | None = None,
        others: Arrivals | None = None,
    ) -> None:
        """`others` are woken by the same messages. `slice_work` limits the work of filters in one slice.

        `call_soon` runs the next slice after other work of the event loop. Without it, all pulls are retried at once.
        """
        self._slice_work = slice_work
        self._slice_spent = 0  # filter work of the current slice
        self._max_waiting = max_waiting
        self._max_per_client = max_per_client
        self._call_soon = call_soon
        self._others = others
        self.other_topics: Mapping[str, object] = others.topics if others is not None else {}
        self.by_queue: dict[_Queue, dict[WaitingPull, None]] = {}
        self._by_client: dict[Client, dict[WaitingPull, None]] = {}
        self._by_deadline: dict[int, dict[WaitingPull, None]] = {}
        # Pulls to retry, each source in turn: a queue with new messages (None: all pulls that wait for it at its turn),
        # a client that has read its data, or _EXPIRED for the expired pulls.
        self._ready: dict[_Source, deque[WaitingPull] | None] = {}
        self._marked_again: set[_Source] = set()  # queues with new messages since their turn began
        self._is_slice_scheduled = False
        self._filters = FilterUsage(max_filter_bytes)
        self._filter_bytes: dict[Client, int] = {}  # size of the filters that its pulls were the first to use
        self._count = 0
        self._refused = 0
        self._evicted = 0

    def check_room(self, client: Client, message_filter: MessageFilter) -> None:
        """Raise an error if no more pulls may wait: clients pause after an error, but not after an empty reply."""
        held = len(self._by_client.get(client, ()))
        if held >= self._max_per_client:
            self._refused += 1
            raise Busy(
                f"{held} pulls of this connection wait, the limit of broker.max_waiting_pulls_per_connection",
                hint="Use fewer queues and groups in one client, or raise the setting",
            )
        if self._count >= self._max_waiting:
            self._evict_pulls(held)
        if self._count >= self._max_waiting:
            self._refused += 1
            raise Busy(
                f"{self._count} pulls wait, the limit of broker.max_waiting_pulls",
                hint="Pull again later, or raise the setting",
            )
        if not self._filters.fits(message_filter):
            self._evict_filters(client, message_filter.size_bytes)
        if not self._filters.fits(message_filter):
            self._refused += 1
            raise Busy(
                "the filters of waiting pulls use all memory that broker.max_waiting_filters allows",
                hint="Let clients share expressions, or raise the setting",
            )

    def _evict_pulls(self, held: int) -> None:
        """Evict the older half at most of each client with more than `held` pulls, the largest clients first."""
        wanted = max(1, self._max_waiting // EVICTION_DIVISOR)
        for pulls in sorted(self._by_client.values(), key=len, reverse=True):
            count = min(wanted, len(pulls) // 2, len(pulls) - held - 1)
            if count <= 0:
                return
            for pull in list(pulls)[:count]:
                self._evict(pull)
            wanted -= count

    def _evict_filters(self, client: Client, size_bytes: int) -> None:
        """Evict the older half of the filters of the client with the most filter bytes, if this client has fewer."""
        largest = max(self._filter_bytes, key=lambda one: self._filter_bytes[one], default=client)
        left_bytes = self._filter_bytes.get(largest, 0) // 2
        if self._filter_bytes.get(client, 0) + size_bytes > left_bytes:
            return
        for pull in list(self._by_client[largest]):
            if pull.filter_bytes and self._filter_bytes[largest] > left_bytes:
                self._evict(pull)

    def _evict(self, pull: WaitingPull) -> None:
        self._forget(pull)
        self._evicted += 1
        error = Busy("this pull was evicted in favour of another client's", hint="See broker.max_waiting_pulls")
        pull.replier.refuse(pull, error)

    def add(self, pull: WaitingPull, deadline_s: float) -> None:
        """Add a waiting pull. The caller has already called `check_room`."""
        pull.deadline = math.ceil(deadline_s / TICK_S)
        self.by_queue.setdefault(pull.queue, {})[pull] = None
        self._by_client.setdefault(pull.client, {})[pull] = None
        self._by_deadline.setdefault(pull.deadline, {})[pull] = None
        pull.filter_bytes = self._filters.hold(pull.message_filter)
        if pull.filter_bytes:
            self._filter_bytes[pull.client] = self._filter_bytes.get(pull.client, 0) + pull.filter_bytes
        self._count += 1

    def mark_ready(self, topic: str, queue_id: int) -> None:
        """Mark a queue that has a new message."""
        queue = (topic, queue_id)
        if queue in self.by_queue and self._ready.setdefault(queue, None) is not None:
            self._marked_again.add(queue)
        if self._others is not None and topic in self.other_topics:
            self._others.mark_ready(topic, queue_id)

    def wake(self) -> None:
        """Retry the pulls of marked queues, oldest first: one slice now, the others in later slices."""
        if self._ready and not self._is_slice_scheduled:
            self._run_slice()
        if self._others is not None:
            self._others.wake()

    def expire(self, now_s: float) -> None:
        """Answer the pulls whose timeout has expired."""
        ended = sorted(deadline for deadline in self._by_deadline if deadline * TICK_S <= now_s)
        expired = [pull for deadline in ended for pull in self._by_deadline.pop(deadline)]
        for pull in expired:
            pull.deadline = _EXPIRED
        if expired:
            pulls = self._ready.get(_EXPIRED) or deque()
            pulls += expired
            self._ready[_EXPIRED] = pulls
            self.wake()

    def finish(self) -> None:
        """Answer all pulls now, because the broker is stopping."""
        self._call_soon, self._is_slice_scheduled = None, False
        self.expire(math.inf)

    def on_drained(self, client: Client) -> None:
        """Answer the deferred pulls of a client that has read its data."""
        deferred = deque(pull for pull in self._by_client.get(client, ()) if pull.is_deferred)
        if deferred:
            self._ready[client] = deferred
            self.wake()

    def remove_client(self, client: Client) -> None:
        """Drop all pulls of a disconnected client."""
        for pull in list(self._by_client.get(client, ())):
            self._forget(pull)

    def _run_slice(self) -> None:
        self._is_slice_scheduled = False
        self._slice_spent = 0
        left = SLICE_PULLS
        while self._ready:
            if (left <= 0 or self._slice_spent >= self._slice_work) and self._call_soon is not None:
                self._is_slice_scheduled = True
                self._call_soon(self._run_slice)
                return
            left -= self._run_turn(next(iter(self._ready)), left if self._call_soon is not None else SLICE_PULLS)

    def _run_turn(self, source: _Source, limit: int) -> int:
        """Retry some pulls of one source and move the source to the end; return how many were retried."""
        pulls = self._ready[source]
        if pulls is None:
            assert isinstance(source, tuple), "only queues have no list yet"
            pulls = self._ready[source] = deque(self.by_queue.get(source, ()))
        count = 0
        while pulls and count < min(TURN_PULLS, limit) and (count == 0 or self._slice_spent < self._slice_work):
            self._try(pulls.popleft())
            count += 1
        del self._ready[source]
        if pulls:
            self._ready[source] = pulls
        elif source in self._marked_again:
            self._marked_again.discard(source)
            self._ready[source] = None
        return count

    def spend(self, work: int) -> None:
        """Count the filter work of a retried pull."""
        self._slice_spent += work

    def _try(self, pull: WaitingPull) -> None:
        if pull not in self._by_client.get(pull.client, ()):
            return  # answered or disconnected meanwhile
        pull.is_deferred = pull.client.is_paused
        if not pull.is_deferred and pull.replier.resume(pull, pull.deadline == _EXPIRED):
            self._forget(pull)

    def _forget(self, pull: WaitingPull) -> None:
        _drop(self.by_queue, pull.queue, pull)
        _drop(self._by_client, pull.client, pull)
        if pull.deadline != _EXPIRED:
            _drop(self._by_deadline, pull.deadline, pull)
        self._filters.release(pull.message_filter)
        if pull.filter_bytes:
            self._filter_bytes[pull.client] -= pull.filter_bytes
            if not self._filter_bytes[pull.client]:
                del self._filter_bytes[pull.client]
        self._count -= 1

    def statistics(self) -> dict[str, int]:
        """Waiting pulls, and how many were refused or evicted since the start."""
        return {
            "waiting_pulls": self._count,
            "connection_waiting_pulls": max(map(len, self._by_client.values()), default=0),
            "waited_queues": len(self.by_queue),
            **self._filters.statistics(),
            "refused_pulls": self._refused,
            "displaced_pulls": self._evicted,
        }


def _drop(pulls: dict[_Key, dict[WaitingPull, None]], key: _Key, pull: WaitingPull) -> None:
    waiting = pulls[key]
    del waiting[pull]
    if not waiting:
        del pulls[key]
