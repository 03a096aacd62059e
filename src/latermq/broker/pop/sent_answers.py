"""Leased pops that were answered a moment ago: if their connection is lost, their messages may not have arrived.

A lease lives as long as its client, so without this a live client would hold messages for hours that it never got.
"""

from collections import deque
from collections.abc import Hashable

from latermq.clock import Clock
from latermq.group.pop.operations import HANDOVER_MS, PopOperations

DOUBTFUL_S = HANDOVER_MS / 1000  # in it a proxy hands over the messages of an answer, or notices that it could not
_MAX_ANSWERS = 10_000  # of one connection; older ones are taken as received


class SentAnswers:
    """The recent answers of each connection."""

    def __init__(self, operations: PopOperations, clock: Clock, client_clock: Clock) -> None:
        self._operations = operations
        self._clock = clock
        self._client_clock = client_clock
        self._recent: dict[Hashable, deque[tuple[float, int, int]]] = {}  # (time, lease, pop time)
        self._lost = 0

    def note(self, client: Hashable, lease: int, pop_ms: int) -> None:
        """Note an answer that is being sent."""
        now_s = self._client_clock.monotonic_s()
        recent = self._recent.get(client)
        if recent is None:
            recent = self._recent[client] = deque(maxlen=_MAX_ANSWERS)
        while recent and recent[0][0] < now_s - DOUBTFUL_S:
            recent.popleft()
        recent.append((now_s, lease, pop_ms))

    def remove_client(self, client: Hashable) -> bool:
        """Note that a connection is lost. Returns whether messages have a shorter lease now."""
        since_s = self._client_clock.monotonic_s() - DOUBTFUL_S
        pops: dict[int, set[int]] = {}
        for sent_s, lease, pop_ms in self._recent.pop(client, ()):
            if sent_s >= since_s:
                pops.setdefault(lease, set()).add(pop_ms)
        return sum([self.lose(lease, pop_times_ms) for lease, pop_times_ms in pops.items()]) > 0

    def lose(self, lease: int, pop_times_ms: set[int]) -> int:
        """Let a client hold the messages of pops whose answers may be lost for the time of a lease only.

        The handles stay valid until then. Returns from how many of the pops it holds messages. The caller journals it.
        """
        lost = self._operations.lose(lease, pop_times_ms, self._clock.now_ms())
        self._lost += lost
        return lost

    def statistics(self) -> dict[str, int]:
        """Recent answers, and those that may not have arrived."""
        return {"recent_pop_answers": sum(map(len, self._recent.values())), "lost_pop_answers": self._lost}
