"""The 99th percentile of a broker's lateness over the last minute or so, from counts since its start."""

from collections import deque

from latermq.http.alerts.signals import Lateness

_SAMPLES = 6  # kept of the span


class RecentLateness:
    """Keeps some earlier counts of one broker, and compares the newest with the oldest of them."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._samples: deque[tuple[float, list[float]]] = deque()

    def p99_ms(self, lateness: Lateness, now_s: float) -> float | None:
        """Add the newest counts. Return the percentile, None if nothing was delivered or nothing earlier is known."""
        upto, samples = lateness.upto, self._samples
        if samples and (len(samples[-1][1]) != len(upto) or samples[-1][1][-1] > upto[-1]):
            samples.clear()  # the broker has started again
        if not samples or now_s - samples[-1][0] >= self._span_s / _SAMPLES:
            samples.append((now_s, upto))
        while len(samples) > 1 and now_s - samples[1][0] >= self._span_s:
            samples.popleft()
        counts = [now - before for now, before in zip(upto, samples[0][1], strict=True)]
        return _percentile(lateness.bounds_ms, counts) if counts[-1] > 0 else None


def _percentile(bounds_ms: list[float], upto: list[float]) -> float:
    """Where 99 % of the counts lie, interpolated between two bounds; at most the last bound."""
    rank = 0.99 * upto[-1]
    low_ms = below = 0.0
    for bound_ms, count in zip(bounds_ms, upto, strict=False):
        if count >= rank:
            return low_ms + (bound_ms - low_ms) * (rank - below) / max(count - below, 1e-9)
        low_ms, below = bound_ms, count
    return bounds_ms[-1]
