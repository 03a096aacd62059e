"""Failed attempts by address: each one makes the next attempt wait longer, up to a bound, until they are forgotten."""

from collections import OrderedDict
from typing import NamedTuple

from latermq.addresses import network_of

MAX_ADDRESSES = 10_000  # above it, the ones that failed least recently are forgotten
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0  # below the 3 s that RocketMQ's clients wait for an answer, so that they see the reason
HALF_LIFE_S = 30.0
_MAX_DOUBLINGS = 6  # reaches the longest pause


class _Failures(NamedTuple):
    number: float
    at_s: float


class FailedAttempts:
    """Counts that decay by half every half-life."""

    def __init__(self) -> None:
        self._by_address: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_address)

    def note(self, ip: str, now_s: float) -> float:
        """Count a failure, and return how long its connection must wait."""
        address = network_of(ip)
        number, at_s = self._by_address.pop(address, _Failures(0.0, now_s))
        number = number * 0.5 ** ((now_s - at_s) / HALF_LIFE_S) + 1
        self._by_address[address] = _Failures(number, now_s)
        if len(self._by_address) > MAX_ADDRESSES:
            self._by_address.popitem(last=False)
        doublings = min(number - 1, _MAX_DOUBLINGS)
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * float(2**doublings))
