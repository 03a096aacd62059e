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
        now_s, lost = self._client_clock.monotonic_s(), 0
        for sent_s, lease, pop_ms in self._recent.pop(client, ()):
            if sent_s >= now_s - DOUBTFUL_S:
                lost += self.lose(lease, pop_ms)
        return lost > 0

    def lose(self, lease: int, pop_ms: int) -> int:
        """Let the client hold what it may have got by one pop for the time of a lease, even if it is reported.

        The handles stay valid until then. Returns the number of batches of messages.
        """
        lost = self._operations.doubt(lease, pop_ms, self._clock.now_ms())
        self._lost += lost > 0
        return lost

    def statistics(self) -> dict[str, int]:
        """Recent answers, and those that may not have arrived."""
        return {"recent_pop_answers": sum(map(len, self._recent.values())), "lost_pop_answers": self._lost}
