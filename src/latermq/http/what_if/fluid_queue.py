"""A queue with a constant rate, fed by pieces of work: how late each piece is served, and when the queue is empty.

Work is a fluid: the messages of a piece arrive evenly from its begin to its end, or at once, and leave in the order of
arrival. What leaves one queue can arrive at the next.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_BISECTIONS = 60
_SMALLEST_S = 1e-9


class Piece(NamedTuple):
    """Messages that are due evenly from `begin_s` to `end_s`, and of which `marked` are those that were added.

    `first_late_s` and `last_late_s` are how late its first and last message have become in the queues before.
    """

    begin_s: float
    end_s: float
    messages: float
    marked: float = 0.0
    first_late_s: float = 0.0
    last_late_s: float = 0.0


class Served(NamedTuple):
    """The pieces as they leave, the longest queue, and when it was last empty; None if it never empties again."""

    pieces: list[Piece]
    longest: float
    drained_s: float | None


def serve(pieces: Sequence[Piece], rate: float, backlog: float = 0.0) -> Served:
    """Serve pieces in their order. The queue has `backlog` messages when the first piece begins.

    `drained_s` is the first time after the last marked piece at which the queue is empty.
    """
    last = max((number for number, piece in enumerate(pieces) if piece.marked), default=-1)
    left: list[Piece] = []
    free_s: float | None = None  # when everything so far is served
    longest, drained_s = backlog, None
    for number, piece in enumerate(pieces):
        if free_s is None:
            free_s = piece.begin_s + backlog / rate
        if drained_s is None and number > last and free_s <= piece.begin_s:
            drained_s = free_s
        begin_s = max(free_s, piece.begin_s)
        free_s = max(piece.end_s, begin_s + piece.messages / rate)
        longest = max(longest, (free_s - piece.end_s) * rate)
        left.append(
            piece._replace(
                begin_s=begin_s,
                end_s=free_s,
                first_late_s=piece.first_late_s + begin_s - piece.begin_s,
                last_late_s=piece.last_late_s + free_s - piece.end_s,
            )
        )
    return Served(left, longest, drained_s)


def lateness_s(pieces: Sequence[Piece], shares: Sequence[float]) -> list[float]:
    """Return within which lateness these shares of the marked messages are; 1.0 is the latest."""
    marked = [piece for piece in pieces if piece.marked > 0]
    if not marked:
        return [0.0] * len(shares)
    ends = np.array([(piece.first_late_s, piece.last_late_s) for piece in marked], np.float64)
    low, high = ends.min(axis=1), np.maximum(ends.max(axis=1), ends.min(axis=1) + _SMALLEST_S)
    weights = np.array([piece.marked for piece in marked], np.float64)
    total, latest = float(weights.sum()), float(high.max())
    found = []
    for share in shares:
        below, above = 0.0, latest
        for _ in range(_BISECTIONS):
            middle = (below + above) / 2
            if float((weights * np.clip((middle - low) / (high - low), 0, 1)).sum()) >= share * total:
                above = middle
            else:
                below = middle
        found.append(latest if share >= 1 else above)
    return found
