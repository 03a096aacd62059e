"""Long polling: pulls that found nothing wait here until a message comes or their time is up.

What a pull needs is kept, and no more: neither its request nor a closure over it. Pulls are tried again in slices,
each waited-for queue in turn, so that however many wait nobody holds the loop.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from latermq.broker.messages.filter_usage import FilterUsage
from latermq.errors import Busy, LaterMQError
from latermq.group.filters import MessageFilter

SLICE_PULLS = 128  # tried before others have their turn: 2 ms, 10 ms where each brings a full batch
TURN_PULLS = 32  # of these from one queue, before the next queue has its turn
TICK_S = 0.5  # how exactly pulls end
DISPLACED_SHARE = 400  # where no place is left, one in so many is freed at once: to find whose costs its time

_LATE = -1  # for a deadline: it has passed
_Key = TypeVar("_Key")
_Queue = tuple[str, int]


class Client(Protocol):
    """The connection that a pull came by, as far as waiting goes."""

    @property
    def is_paused(self) -> bool:
        """Whether the peer is behind with reading."""
        ...


class WaitingPull:
    """One pull that waits: where its answer goes, and what it asks for."""

    __slots__ = (
        "answerer",
        "client",
        "deadline",
        "encoding",
        "filter_bytes",
        "first_offset",
        "group",
        "is_put_off",
        "max_bytes",
        "max_messages",
        "message_filter",
        "offset",
        "opaque",
        "queue",
    )

    def __init__(
        self,
        client: Client,
        answerer: "Answerer",
        opaque: int,
        encoding: int,
        group: str,
        queue: tuple[str, int],
        offset: int,
        max_messages: int,
        max_bytes: int,
        message_filter: MessageFilter,
    ) -> None:
        """Group and topic should be the strings of their tables, which cost nothing here."""
        self.client = client
        self.answerer = answerer
        self.opaque = opaque
        self.encoding = encoding
        self.group = group
        self.queue = queue
        self.first_offset = self.offset = offset
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.message_filter = message_filter
        self.filter_bytes = 0  # of its filter, where it was the first that waits with it
        self.deadline = _LATE  # in ticks
        self.is_put_off = False  # it may be answered, but its client is behind with reading


class Answerer(Protocol):
    """Who sends the answers."""

    def resume(self, pull: WaitingPull, must_answer: bool) -> bool:
        """Try again, and say whether the pull was answered."""
        ...

    def refuse(self, pull: WaitingPull, error: LaterMQError) -> None:
        """Answer with an error."""
        ...


Later = Callable[[Callable[[], None]], object]
_Lot = _Queue | Client | int


class WaitingPulls:
    """Waiting pulls by queue, by client and by deadline. A touched queue is looked at once, however much came."""

    def __init__(
        self,
        max_waiting: int,
        max_per_client: int,
        max_filter_bytes: int,
        slice_work: int = 1 << 20,
        later: Later | None = None,
    ) -> None:
        """`slice_work` limits the work of filters before other work has its turn.

        `later` calls back after that turn. Without it, all pulls are tried at once.
        """
        self._slice_work = slice_work
        self._spent = 0  # of it, in this slice
        self._max_waiting = max_waiting
        self._max_per_client = max_per_client
        self._later = later
        self.by_queue: dict[_Queue, dict[WaitingPull, None]] = {}
        self._by_client: dict[Client, dict[WaitingPull, None]] = {}
        self._by_deadline: dict[int, dict[WaitingPull, None]] = {}
        # Pulls to try, each lot in turn: of a touched queue (None: all that wait for it when its turn comes), of a
        # client that has caught up, and those whose time is up.
        self._lots: dict[_Lot, deque[WaitingPull] | None] = {}
        self._touched_again: set[_Lot] = set()  # queues, while their lot is being tried
        self._goes_on_later = False
        self._filters = FilterUsage(max_filter_bytes)
        self._filter_bytes: dict[Client, int] = {}  # that its pulls were the first to hold
        self._count = 0
        self._refused = 0
        self._displaced = 0

    def check_room(self, client: Client, message_filter: MessageFilter) -> None:
        """Refuse to let one more wait, with an error: after that clients pause, an empty answer they repeat at once."""
        held = len(self._by_client.get(client, ()))
        if held >= self._max_per_client:
            self._refused += 1
            raise Busy(
                f"{held} pulls of this connection wait, as many as broker.max_waiting_pulls_per_connection allows",
                hint="Use fewer queues and groups in one client, or raise the setting",
            )
        if self._count >= self._max_waiting:
            self._displace(held)
        if self._count >= self._max_waiting:
            self._refused += 1
            raise Busy(
                f"{self._count} pulls wait, as many as broker.max_waiting_pulls allows",
                hint="Pull again later, or raise the setting",
            )
        if not self._filters.fits(message_filter):
            self._displace_filters(client, message_filter.size_bytes)
        if not self._filters.fits(message_filter):
            self._refused += 1
            raise Busy(
                "the filters of pulls that wait take as much memory as broker.max_waiting_filters allows",
                hint="Let clients share expressions, or raise the setting",
            )

    def _displace(self, held: int) -> None:
        """Free places of the clients that hold most, for one that holds this many: of each up to the older half."""
        wanted = max(1, self._max_waiting // DISPLACED_SHARE)
        for pulls in sorted(self._by_client.values(), key=len, reverse=True):
            count = min(wanted, len(pulls) // 2, len(pulls) - held - 1)
            if count <= 0:
                return
            for pull in list(pulls)[:count]:
                self._end_early(pull)
            wanted -= count

    def _displace_filters(self, client: Client, size_bytes: int) -> None:
        """Free the older half of the filters of the client that holds most, for one that holds less."""
        most = max(self._filter_bytes, key=lambda one: self._filter_bytes[one], default=client)
        left_bytes = self._filter_bytes.get(most, 0) // 2
        if self._filter_bytes.get(client, 0) + size_bytes > left_bytes:
            return
        for pull in list(self._by_client[most]):
            if pull.filter_bytes and self._filter_bytes[most] > left_bytes:
                self._end_early(pull)

    def _end_early(self, pull: WaitingPull) -> None:
        self._forget(pull)
        self._displaced += 1
        error = Busy("this pull gave its place to one of another client", hint="See broker.max_waiting_pulls")
        pull.answerer.refuse(pull, error)

    def add(self, pull: WaitingPull, deadline_s: float) -> None:
        """Let a pull wait, for which `check_room` found a place."""
        pull.deadline = math.ceil(deadline_s / TICK_S)
        self.by_queue.setdefault(pull.queue, {})[pull] = None
        self._by_client.setdefault(pull.client, {})[pull] = None
        self._by_deadline.setdefault(pull.deadline, {})[pull] = None
        pull.filter_bytes = self._filters.hold(pull.message_filter)
        if pull.filter_bytes:
            self._filter_bytes[pull.client] = self._filter_bytes.get(pull.client, 0) + pull.filter_bytes
        self._count += 1

    def touch(self, topic: str, queue_id: int) -> None:
        """Something was put into this queue."""
        queue = (topic, queue_id)
        if queue in self.by_queue and self._lots.setdefault(queue, None) is not None:
            self._touched_again.add(queue)

    def wake(self) -> None:
        """Try the pulls of touched queues, the longest waiting first: a slice now, the others when it is their turn."""
        if self._lots and not self._goes_on_later:
            self._take_slice()

    def expire(self, now_s: float) -> None:
        """Answer the pulls whose time is up."""
        ended = sorted(deadline for deadline in self._by_deadline if deadline * TICK_S <= now_s)
        late = [pull for deadline in ended for pull in self._by_deadline.pop(deadline)]
        for pull in late:
            pull.deadline = _LATE
        if late:
            lot = self._lots.get(_LATE) or deque()
            lot += late
            self._lots[_LATE] = lot
            self.wake()

    def finish(self) -> None:
        """Answer all of them now: the broker is stopping."""
        self._later, self._goes_on_later = None, False
        self.expire(math.inf)

    def on_drained(self, client: Client) -> None:
        """A client has read what it got: answer what was put off meanwhile."""
        put_off = deque(pull for pull in self._by_client.get(client, ()) if pull.is_put_off)
        if put_off:
            self._lots[client] = put_off
            self.wake()

    def remove_client(self, client: Client) -> None:
        """A client has gone, and with it all its pulls."""
        for pull in list(self._by_client.get(client, ())):
            self._forget(pull)

    def _take_slice(self) -> None:
        self._goes_on_later = False
        self._spent = 0
        left = SLICE_PULLS
        while self._lots:
            if (left <= 0 or self._spent >= self._slice_work) and self._later is not None:
                self._goes_on_later = True
                self._later(self._take_slice)
                return
            left -= self._take_turn(next(iter(self._lots)), left if self._later is not None else SLICE_PULLS)

    def _take_turn(self, name: _Lot, most: int) -> int:
        """Try some pulls of one lot, and put what is left of it behind the others; how many were tried."""
        lot = self._lots[name]
        if lot is None:
            assert isinstance(name, tuple), "only those of a queue are not listed yet"
            lot = self._lots[name] = deque(self.by_queue.get(name, ()))
        count = 0
        while lot and count < min(TURN_PULLS, most) and (count == 0 or self._spent < self._slice_work):
            self._try(lot.popleft())
            count += 1
        del self._lots[name]
        if lot:
            self._lots[name] = lot
        elif name in self._touched_again:
            self._touched_again.discard(name)
            self._lots[name] = None
        return count

    def spend(self, work: int) -> None:
        """What the filter of a pull that was tried did."""
        self._spent += work

    def _try(self, pull: WaitingPull) -> None:
        if pull not in self._by_client.get(pull.client, ()):
            return  # answered meanwhile, or gone
        pull.is_put_off = pull.client.is_paused
        if not pull.is_put_off and pull.answerer.resume(pull, pull.deadline == _LATE):
            self._forget(pull)

    def _forget(self, pull: WaitingPull) -> None:
        _drop(self.by_queue, pull.queue, pull)
        _drop(self._by_client, pull.client, pull)
        if pull.deadline != _LATE:
            _drop(self._by_deadline, pull.deadline, pull)
        self._filters.release(pull.message_filter)
        if pull.filter_bytes:
            self._filter_bytes[pull.client] -= pull.filter_bytes
            if not self._filter_bytes[pull.client]:
                del self._filter_bytes[pull.client]
        self._count -= 1

    def statistics(self) -> dict[str, int]:
        """How many wait; and since the start, how many found no place or lost it."""
        return {
            "waiting_pulls": self._count,
            "connection_waiting_pulls": max(map(len, self._by_client.values()), default=0),
            "waited_queues": len(self.by_queue),
            **self._filters.statistics(),
            "refused_pulls": self._refused,
            "displaced_pulls": self._displaced,
        }


def _drop(pulls: dict[_Key, dict[WaitingPull, None]], key: _Key, pull: WaitingPull) -> None:
    waiting = pulls[key]
    del waiting[pull]
    if not waiting:
        del pulls[key]
