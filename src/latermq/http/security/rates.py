"""Requests per second of each client, as token buckets: a client may use up one second's requests at once."""

from collections import OrderedDict
from http import HTTPStatus

from starlette.types import ASGIApp, Receive, Scope, Send

from latermq.addresses import network_of, plain_ip
from latermq.clock import Clock
from latermq.http.problems import HttpError, problem_response


class Rates:
    """How many requests each client may still send. Bounded: the client that asked least recently is forgotten."""

    def __init__(self, clock: Clock, per_second: int, max_clients: int) -> None:
        """With 0 per second there is no limit."""
        self._clock = clock
        self._per_second = per_second
        self._max_clients = max_clients
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client → requests left, as of a time
        self.refused = 0

    def __len__(self) -> int:
        return len(self._left)

    def take(self, client: str) -> bool:
        """Count a request. Returns whether the client may send it."""
        if not self._per_second:
            return True
        now_s = self._clock.monotonic_s()
        left, since_s = self._left.pop(client, (float(self._per_second), now_s))
        left = min(self._per_second, left + (now_s - since_s) * self._per_second)
        is_allowed = left >= 1
        self._left[client] = (left - is_allowed, now_s)
        if len(self._left) > self._max_clients:
            self._left.popitem(last=False)
        self.refused += not is_allowed
        return is_allowed


class RateGuard:
    """Answers 429 to clients that ask too often."""

    def __init__(self, app: ASGIApp, rates: Rates) -> None:
        self._app = app
        self._rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._rates.take(client_of(scope)):
            error = HttpError(
                HTTPStatus.TOO_MANY_REQUESTS,
                "this client sends more requests per second than http.rate",
                hint="Send several timers in one batch, or raise http.rate",
            )
            await problem_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def client_of(scope: Scope) -> str:
    """Return what counts as one client."""
    peer = scope.get("client")
    return network_of(plain_ip(peer[0])) if peer else ""
