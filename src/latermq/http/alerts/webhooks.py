"""Changes of alerts posted to webhooks: one queue and one sender per URL, retries with back-off, and signatures."""

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from urllib.parse import SplitResult

import msgspec
import structlog

import latermq
from latermq.config import AlertsConfig
from latermq.http.alerts.alert import Alert
from latermq.http.alerts.post import PostFailed, origin, post
from latermq.retry import Backoff
from latermq.webhook_urls import webhook_urls

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 300.0
DELIVERED, RETRIED, FAILED, DROPPED = RESULTS = ("delivered", "retried", "failed", "dropped")
_SECRET_PREFIX = "whsec_"
_log = structlog.get_logger(__name__)

Post = Callable[[SplitResult, bytes, Mapping[str, str], float], Awaitable[None]]


class AlertMessage(msgspec.Struct):
    """The body of a message. `text` is also what chat systems show."""

    version: int
    text: str
    console: str
    alert: Alert


def signature_headers(secret: str, message_id: str, sent_s: int, body: bytes) -> dict[str, str]:
    """Return the headers of Standard Webhooks: an id, the time and, with a secret, a signature."""
    headers = {"webhook-id": message_id, "webhook-timestamp": str(sent_s)}
    if secret:
        key = secret.encode()
        if secret.startswith(_SECRET_PREFIX):
            with contextlib.suppress(binascii.Error):  # then the text itself is the key
                key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
        signed = f"{message_id}.{sent_s}.".encode() + body
        digest = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
        headers["webhook-signature"] = f"v1,{digest}"
    return headers


class Webhooks:
    """Sends every change of an alert once to each URL, in order. Nothing here waits for a receiver but its sender."""

    def __init__(
        self, config: AlertsConfig, address: Callable[[], str], changed: Callable[[], None], *, send: Post = post
    ) -> None:
        """`changed` is called when messages were added or removed, so that they can be saved."""
        self._config = config
        self._address = address
        self._changed = changed
        self._send = send
        self._targets = [_Target(url) for url in webhook_urls(config.webhook)]
        self._tasks: list[asyncio.Task[None]] = []
        self.results: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))

    @property
    def unsent(self) -> int:
        """How many messages wait for the webhook with the most."""
        return max((len(target.queue) for target in self._targets), default=0)

    def start(self) -> None:
        """Begin to send."""
        self._tasks = [asyncio.create_task(self._run(target)) for target in self._targets]

    async def close(self) -> None:
        """Stop sending. Unsent messages stay in the state file, if there is one."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def add(self, alerts: Iterable[Alert]) -> None:
        """Queue messages on these changes."""
        for alert in alerts:
            for target in self._targets:
                self._queue(target, alert)
        self._changed()

    def waiting(self) -> dict[str, list[Alert]]:
        """Return the unsent messages by the name of their URL, which does not reveal it."""
        return {target.name: [alert for alert, _ in target.queue] for target in self._targets if target.queue}

    def restore(self, waiting: Mapping[str, list[Alert]]) -> None:
        """Queue messages that were not sent before a restart."""
        for target in self._targets:
            for alert in waiting.get(target.name, ()):
                self._queue(target, alert)

    def _queue(self, target: "_Target", alert: Alert) -> None:
        if len(target.queue) >= self._config.max_unsent:
            target.queue.popleft()
            self.results[DROPPED] += 1
            if not target.is_dropping:
                _log.warning("webhook messages are dropped", to=origin(target.url), limit="alerts.max_unsent")
            target.is_dropping = True
        target.queue.append((alert, time.monotonic()))
        target.wake.set()

    async def _run(self, target: "_Target") -> None:
        backoff = Backoff(FIRST_PAUSE_S, MAX_PAUSE_S)
        while True:
            target.wake.clear()
            if not target.queue:
                await target.wake.wait()
                continue
            entry = target.queue[0]
            pause_s = await self._try(target, *entry, backoff)
            if pause_s is None:
                if target.queue and target.queue[0] is entry:  # otherwise it was dropped meanwhile
                    target.queue.popleft()
                target.is_dropping = target.is_dropping and bool(target.queue)
                self._changed()
            else:
                await asyncio.sleep(pause_s)

    async def _try(self, target: "_Target", alert: Alert, queued_s: float, backoff: Backoff[float]) -> float | None:
        """Try to send a message. Return how long to wait before the next try, None if the message is finished."""
        body = msgspec.json.encode(AlertMessage(1, _text(alert), self._address(), alert))
        message_id = f"{alert.id}-{alert.state}-{alert.since_ms}"
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"latermq/{latermq.__version__}",
            **signature_headers(self._config.webhook_secret, message_id, int(time.time()), body),
        }
        try:
            await self._send(target.url, body, headers, self._config.webhook_timeout / 1000)
        except PostFailed as error:
            reason, may_retry = str(error), error.may_retry
        except Exception:  # a defect must not end the sender
            _log.exception("a webhook message failed", to=origin(target.url))
            reason, may_retry = "a defect", False
        else:
            self.results[DELIVERED] += 1
            backoff.reset()
            return None
        pause_s = backoff.next_pause()
        too_late = time.monotonic() - queued_s + pause_s > self._config.retry_for / 1000
        shown = {"to": origin(target.url), "rule": alert.rule, "state": alert.state, "reason": reason}
        if not may_retry or too_late:
            self.results[FAILED] += 1
            _log.error("a webhook message was not accepted and is dropped", **shown)
            return None
        self.results[RETRIED] += 1
        _log.warning("a webhook message is tried again", **shown, pause_s=pause_s)
        return pause_s


class _Target:
    """A URL and its unsent messages."""

    def __init__(self, url: SplitResult) -> None:
        self.url = url
        self.name = hashlib.sha256(url.geturl().encode()).hexdigest()[:16]
        self.queue: deque[tuple[Alert, float]] = deque()
        self.wake = asyncio.Event()
        self.is_dropping = False


def _text(alert: Alert) -> str:
    return f"[{'RESOLVED' if alert.state == 'resolved' else alert.severity.upper()}] {alert.text}"
