"""The consumer that closes unpaid orders, and the order that it cannot close at first."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from latermq.cli.demo.checks import check
from latermq.cli.demo.commands import latermq, latermq_rows
from latermq.cli.demo.polling import until
from latermq.client import Admin, Message, PushConsumer

GROUP = "demo-order-closer"
RETRIES, RETRY_DELAYS = 2, ("500ms", "1s")


async def create_group(admin: Admin) -> None:
    """Two retries, after half a second and a second. The default is 16, from 10 s to 2 h."""
    await admin.create_group(GROUP, retry_max_times=RETRIES, retry_levels=RETRY_DELAYS)


class OrderCloser:
    """Handles the timers of orders that were not paid in time."""

    def __init__(self, broken_key: Callable[[], str]) -> None:
        self._broken_key = broken_key
        self.closed: set[str] = set()
        self.attempts: Counter[str] = Counter()
        self.is_repaired = False

    @property
    def broken_key(self) -> str:
        """The order whose timer fails until it is repaired."""
        return self._broken_key()

    def handle(self, message: Message) -> None:
        key = f"order-{json.loads(message.body)['order']}"
        self.attempts[key] += 1
        if key == self.broken_key and not self.is_repaired:
            raise RuntimeError("the invoice has no address")
        self.closed.add(key)

    async def wait_for(self, keys: set[str]) -> None:
        """Wait until these orders are closed."""

        async def are_closed() -> bool:
            return keys <= self.closed

        await until(are_closed)

    def consumer(self, namesrv: str) -> PushConsumer:
        return PushConsumer(namesrv, GROUP, self.handle, consume_from="first")


async def resend_dead_letter(closer: OrderCloser, namesrv: str) -> list[str]:
    """Wait until the order that cannot be closed is a dead letter, repair the cause, and send it again."""

    async def dead_letters() -> list[dict[str, Any]]:
        return await latermq_rows("dlq", "list", GROUP, "--namesrv", namesrv)

    [letter] = await until(dead_letters)
    check(letter["keys"] == [closer.broken_key], f"the dead letter is {letter['keys']}, not {closer.broken_key}")
    failures = closer.attempts[closer.broken_key]
    check(failures == RETRIES + 1, f"{closer.broken_key} was tried {failures} times instead of {RETRIES + 1}")
    closer.is_repaired = True
    said = await latermq("dlq", "resend", GROUP, "--all", "--namesrv", namesrv)
    await closer.wait_for({closer.broken_key})
    return [
        f"{closer.broken_key} failed {failures} times and became a dead letter of {GROUP}",
        f"latermq dlq resend {GROUP} --all: {said.strip()}; closed at the next attempt",
    ]
