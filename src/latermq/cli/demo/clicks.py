"""A stream of ordinary messages, in the middle of which the broker is killed."""

import asyncio
import time

from latermq.cli.demo.checks import check
from latermq.cli.demo.deliveries import Outage, read_topic
from latermq.cli.demo.scale import Scale
from latermq.cli.demo.server import Server
from latermq.cli.demo.shop import RETRY_PAUSE_S, now_ms
from latermq.client import OutgoingMessage, Producer
from latermq.errors import LaterMQError

TOPIC = "demo-clicks"
SENDERS = 64
_BODY = b"x" * 200


class ClickStream:
    """Sends clicks from many senders. Like an application, it sends again what was not acknowledged."""

    def __init__(self, server: Server, producer: Producer, scale: Scale) -> None:
        self._server = server
        self._producer = producer
        self._scale = scale
        self._killed_pid = 0
        self._killed_ms = self._back_ms = 0
        self._last_s = self._longest_gap_s = 0.0
        self.acknowledged = self.failed_sends = 0

    def state(self) -> str:
        return f"{self.acknowledged:,} of {self._scale.clicks:,} clicks acknowledged"

    async def run(self) -> tuple[Outage, list[str]]:
        """Send all clicks, and kill the broker meanwhile. Returns when it was dead, and what was seen."""
        numbers = iter(range(self._scale.clicks))
        self._last_s = time.monotonic()

        async def send_numbers() -> None:
            for number in numbers:
                message = OutgoingMessage(TOPIC, _BODY, keys=(f"click-{number}",))
                while True:
                    try:
                        await self._producer.send(message)
                        break
                    except LaterMQError:
                        self.failed_sends += 1
                        await asyncio.sleep(RETRY_PAUSE_S)
                self._acknowledge()

        await asyncio.gather(*(send_numbers() for _ in range(SENDERS)))
        check(self._back_ms > 0, "the broker did not come back")
        return Outage(self._killed_ms, self._back_ms), [
            f"killed broker process {self._killed_pid} after {self._scale.kill_after_clicks:,} acknowledgements",
            f"{self.acknowledged:,} acknowledged in the end, {self.failed_sends:,} failed sends were repeated",
            f"replaced by process {self._server.pid_of('broker')}; no send succeeded for {self._longest_gap_s:.1f} s",
        ]

    def _acknowledge(self) -> None:
        now_s = time.monotonic()
        gap_s, self._last_s = now_s - self._last_s, now_s
        self.acknowledged += 1
        if self.acknowledged == self._scale.kill_after_clicks:
            self._killed_pid, self._killed_ms = self._server.kill("broker"), now_ms()
        elif self._killed_pid and gap_s > self._longest_gap_s:
            # Replies that were under way at the kill come at once. The longest pause ends with the first one after it.
            self._longest_gap_s, self._back_ms = gap_s, now_ms()


async def find_all(namesrv: str, clicks: int) -> list[str]:
    """Look up every acknowledged click."""
    stored = [message.properties["KEYS"] async for message in read_topic(namesrv, TOPIC)]
    missing = {f"click-{number}" for number in range(clicks)} - set(stored)
    check(not missing, f"{len(missing)} of {clicks} acknowledged messages are missing")
    findings = [f"{clicks:,} acknowledged, all stored, 0 missing"]
    if repeated := len(stored) - len(set(stored)):
        findings.insert(0, f"{repeated} stored twice: before the kill, and again by a repeated send")
    return findings
