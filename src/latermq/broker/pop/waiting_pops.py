"""Pops that wait for messages. A message wakes one pop of each group, the oldest one that can be answered."""

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from latermq.broker.pop.pop_request import PopRequest
from latermq.errors import PollingFull
from latermq.group.pop.handles import pop_retry_topic
from latermq.message.names import retry_topic

TICK_MS = 10  # deadlines are rounded down to it
SLICE_POPS = 64  # pops that are tried before other work has its turn: about 1 ms
ANY_QUEUE = -1
_ALL_QUEUES = -2  # a mark: pops of any queue may be answered


class Client(Protocol):
    """The client's connection, as far as waiting pops use it."""

    @property
    def is_paused(self) -> bool: ...

    @property
    def is_closing(self) -> bool: ...


class PopReplier(Protocol):
    """Sends the replies of waiting pops."""

    def resume(self, pop: "WaitingPop") -> bool:
        """Try the pop again, and return whether it was answered."""
        ...

    def expire(self, pop: "WaitingPop") -> None:
        """Answer that no message arrived in time."""
        ...


class WaitingPop:
    """One waiting pop, with only what its answer needs."""

    __slots__ = ("client", "deadline", "encoding", "opaque", "replier", "request")

    def __init__(self, client: Client, replier: PopReplier, opaque: int, encoding: int, request: PopRequest) -> None:
        self.client = client
        self.replier = replier
        self.opaque = opaque
        self.encoding = encoding
        self.request = request
        self.deadline = 0  # in ticks


_Key = tuple[str, str]  # group and topic
_Pops = dict[WaitingPop, None]
CallSoon = Callable[[Callable[[], None]], object]


class WaitingPops:
    """Waiting pops by group and topic, by client and by deadline."""

    def __init__(self, max_waiting: int, max_per_queue: int, call_soon: CallSoon | None = None) -> None:
        """`max_per_queue` bounds the pops of one group that wait for the same queue, or for any queue, of a topic.

        `call_soon` runs the next slice after other work of the event loop. Without it, all pops are tried at once.
        """
        self._max_waiting = max_waiting
        self._max_per_queue = max_per_queue
        self._call_soon = call_soon
        # Topics whose messages may answer a pop, with the keys of these pops. Retry topics are among them.
        self.topics: dict[str, dict[_Key, None]] = {}
        self._by_key: dict[_Key, dict[int, _Pops]] = {}  # then by queue id
        self._by_group: dict[str, dict[_Key, None]] = {}
        self._by_client: dict[Client, _Pops] = {}
        self._by_opaque: dict[tuple[Client, int], WaitingPop] = {}  # for `cancel`; the last one if a client repeats it
        self._by_deadline: dict[int, _Pops] = {}
        self._deadlines: list[int] = []  # a heap
        self._marked: dict[str, set[int]] = {}  # topics with new messages, and the queues
        self._ready: dict[_Key, set[int]] = {}  # keys to try
        self._is_slice_scheduled = False
        self._count = 0
        self._refused = 0

    # Waiting

    def add(self, pop: WaitingPop, deadline_ms: int) -> None:
        """Let a pop wait. Raises PollingFull at a limit."""
        request = pop.request
        key = request.group, request.topic
        waiting = self._by_key.get(key, {}).get(request.queue_id, {})
        if self._count >= self._max_waiting or len(waiting) >= self._max_per_queue:
            self._refused += 1
            raise PollingFull(
                f"{len(waiting)} pops of group {request.group!r} and {self._count} of all groups wait",
                hint="Pop again later, or raise pop.max_waiting or pop.max_waiting_per_queue",
            )
        if key not in self._by_key:
            self._by_key[key] = {}
            self._by_group.setdefault(request.group, {})[key] = None
            for topic in _watched(key):
                self.topics.setdefault(topic, {})[key] = None
        self._by_key[key].setdefault(request.queue_id, {})[pop] = None
        self._by_client.setdefault(pop.client, {})[pop] = None
        self._by_opaque[pop.client, pop.opaque] = pop
        pop.deadline = deadline_ms // TICK_MS
        if pop.deadline not in self._by_deadline:
            self._by_deadline[pop.deadline] = {}
            heapq.heappush(self._deadlines, pop.deadline)
        self._by_deadline[pop.deadline][pop] = None
        self._count += 1

    def remove_client(self, client: Client) -> None:
        """Drop all pops of a disconnected client."""
        for pop in list(self._by_client.get(client, ())):
            self._forget(pop)

    def cancel(self, client: Client, opaque: int) -> None:
        """Answer a pop that its client does not want any more, if it still waits."""
        pop = self._by_opaque.get((client, opaque))
        if pop is not None:
            self._forget(pop)
            pop.replier.expire(pop)

    def _forget(self, pop: WaitingPop) -> None:
        request = pop.request
        key = request.group, request.topic
        by_queue = self._by_key[key]
        del by_queue[request.queue_id][pop]
        if not by_queue[request.queue_id]:
            del by_queue[request.queue_id]
        if not by_queue:
            del self._by_key[key]
            del self._by_group[request.group][key]
            if not self._by_group[request.group]:
                del self._by_group[request.group]
            for topic in _watched(key):
                del self.topics[topic][key]
                if not self.topics[topic]:
                    del self.topics[topic]
        _drop(self._by_client, pop.client, pop)
        if self._by_opaque.get((pop.client, pop.opaque)) is pop:
            del self._by_opaque[pop.client, pop.opaque]
        own = self._by_deadline.get(pop.deadline)
        if own is not None:  # the heap keeps the deadline until it has passed
            own.pop(pop, None)
        self._count -= 1

    # Waking

    def mark_ready(self, topic: str, queue_id: int) -> None:
        """Mark a topic that has a new message."""
        if topic in self.topics:
            self._marked.setdefault(topic, set()).add(queue_id)

    def mark_group(self, group: str, topic: str) -> None:
        """Mark pops of one group, for example because a queue that it pops in order is not blocked any more."""
        if (group, topic) in self._by_key:
            self._ready.setdefault((group, topic), set()).add(_ALL_QUEUES)

    def mark_groups(self, groups: Iterable[str]) -> None:
        """Mark all pops of groups whose members changed: queues of a member that pulled may be free."""
        for group in groups:
            for key in self._by_group.get(group, ()):
                self._ready.setdefault(key, set()).add(_ALL_QUEUES)

    def mark_topic(self, topic: str) -> None:
        """Mark all pops of a topic that has more queues to read from."""
        for key in self.topics.get(topic, ()):
            if key[1] == topic:
                self._ready.setdefault(key, set()).add(_ALL_QUEUES)

    def on_drained(self, client: Client) -> None:
        """Try the pops of a client that has read its data: they were skipped."""
        for pop in self._by_client.get(client, ()):
            self.mark_group(pop.request.group, pop.request.topic)
        self.wake()

    def wake(self) -> None:
        """Try pops of marked topics: one slice now, the others in later slices."""
        if self._marked:
            marked, self._marked = self._marked, {}
            for topic, queue_ids in marked.items():
                for key in self.topics.get(topic, ()):
                    # A retry topic has other queues than the topic.
                    marks = {ANY_QUEUE, *queue_ids} if topic == key[1] else {_ALL_QUEUES}
                    self._ready.setdefault(key, set()).update(marks)
        if self._ready and not self._is_slice_scheduled:
            self._run_slice()

    def _run_slice(self) -> None:
        self._is_slice_scheduled = False
        left = SLICE_POPS
        while self._ready:
            if left <= 0 and self._call_soon is not None:
                self._is_slice_scheduled = True
                self._call_soon(self._run_slice)
                return
            key, queue_ids = next(iter(self._ready.items()))
            del self._ready[key]
            left -= self._try_key(key, queue_ids, left if self._call_soon is not None else self._max_waiting)

    def _try_key(self, key: _Key, queue_ids: set[int], limit: int) -> int:
        """Try pops of one key, of each queue until one finds nothing, and return how many were tried."""
        by_queue = self._by_key.get(key)
        if by_queue is None:
            return 1
        wanted = deque(by_queue if _ALL_QUEUES in queue_ids else [one for one in queue_ids if one in by_queue])
        tried = 0
        while wanted:
            if tried >= limit:
                self._ready[key] = set(wanted)
                break
            queue_id = wanted.popleft()
            count, has_more = self._try_queue(by_queue.get(queue_id, {}), limit - tried)
            tried += count
            if has_more:
                wanted.append(queue_id)
        return max(1, tried)

    def _try_queue(self, pops: _Pops, limit: int) -> tuple[int, bool]:
        """Try the oldest pops until one finds nothing; return how many, and whether the limit ended it."""
        tried = 0
        for pop in list(pops) if len(pops) <= limit else [pop for pop, _ in zip(pops, range(limit), strict=False)]:
            tried += 1
            if pop.client.is_closing:
                self._forget(pop)
            elif pop.client.is_paused:
                continue  # its turn passes to the next one
            elif pop.replier.resume(pop):
                self._forget(pop)
            else:
                return tried, False
        # Paused clients at the front must not keep a slice busy: `on_drained` marks them again.
        return tried, bool(pops) and tried >= limit and not all(pop.client.is_paused for pop in pops)

    # Time

    def next_deadline_ms(self) -> int | None:
        """Return when the next pop must be answered."""
        return self._deadlines[0] * TICK_MS if self._deadlines else None

    def expire(self, now_ms: float) -> None:
        """Answer the pops whose time is up."""
        while self._deadlines and self._deadlines[0] * TICK_MS <= now_ms:
            for pop in self._by_deadline.pop(heapq.heappop(self._deadlines)):
                self._forget(pop)
                if not pop.client.is_closing:
                    pop.replier.expire(pop)

    def finish(self) -> None:
        """Answer all pops, because the broker is stopping."""
        self._call_soon = None
        self.expire(float("inf"))

    def count_of(self, group: str, topic: str, queue_id: int) -> int:
        """Return how many pops of a group wait for a queue, or for any queue."""
        return len(self._by_key.get((group, topic), {}).get(queue_id, ()))

    def statistics(self) -> dict[str, int]:
        """Waiting pops, and how many were refused since the start."""
        queues = (len(pops) for by_queue in self._by_key.values() for pops in by_queue.values())
        return {
            "waiting_pops": self._count,
            "queue_waiting_pops": max(queues, default=0),
            "refused_waiting_pops": self._refused,
        }


def _watched(key: _Key) -> tuple[str, ...]:
    """Return the topics whose messages may answer a pop."""
    group, topic = key
    retries = pop_retry_topic(group, topic), pop_retry_topic(group, topic, is_v2=True)
    return topic, *retries, retry_topic(group)


def _drop(pops: dict[Client, _Pops], client: Client, pop: WaitingPop) -> None:
    waiting = pops[client]
    del waiting[pop]
    if not waiting:
        del pops[client]
