"""One log line per request, the counts by status, and the headers that every answer has."""

from collections import Counter

import structlog
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from latermq.clock import Clock
from latermq.http.problems import AnswerUnread, internal_error

# The API answers with data; the console's pages load only what this process serves.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
STATIC_PREFIX = "/static/"  # a page loads several files from there
# Probes ask every few seconds, and their answers are also in the metrics.
QUIET_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
_CLIENT_GONE = 499  # the client closed the connection before it was answered

_log = structlog.get_logger(__name__)


class AccessLog:
    """Logs and counts what the application answers. A defect is logged with its traceback and answered with 500."""

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock
        self.answers: Counter[int] = Counter()
        self.duration_ms = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = self._clock.monotonic_s()
        status = _CLIENT_GONE

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except AnswerUnread:  # the fault of the client
            raise
        except Exception:  # the last resort: any defect of a handler
            _log.exception("request failed", method=scope["method"], path=scope["path"])
            if status != _CLIENT_GONE:
                raise  # the answer has begun, so the connection must be closed
            await internal_error()(scope, receive, send_noted)
        finally:
            took_ms = (self._clock.monotonic_s() - began_s) * 1000
            self.answers[int(status)] += 1
            self.duration_ms += took_ms
            self._write(scope, status, took_ms)

    def _write(self, scope: Scope, status: int, took_ms: float) -> None:
        path = scope["path"]
        log = _log.debug if path in QUIET_PATHS or path.startswith(STATIC_PREFIX) else _log.info
        peer = scope.get("client")
        log(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=int(status),
            ms=round(took_ms, 1),
            peer=f"{peer[0]}:{peer[1]}" if peer else "",
        )
