"""The shop: places orders, sets a timer on each, and cancels the timer when the order is paid.

It behaves like an application that survives its broker: whatever was not answered is looked up before it is repeated.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from latermq.cli.demo.scale import Scale
from latermq.client import Admin, Outcome, OutgoingMessage, Producer, Verdict
from latermq.errors import LaterMQError

ORDERS, TIMEOUTS = "demo-orders", "demo-order-timeouts"
PAID_SHARE, EXTENDED_SHARE = 0.7, 0.1  # of the orders; the others expire
EXTENSION_MS = 4_000
RETRY_PAUSE_S = 0.2

T = TypeVar("T")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def until_answered(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call while the broker is away. Only for calls whose repetition changes nothing."""
    while True:
        try:
            return await call()
        except LaterMQError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(RETRY_PAUSE_S)


@dataclass
class Order:
    """One order, and the time at which it is closed unless its timer is cancelled."""

    number: int
    due_ms: int
    is_cancelled: bool = False

    @property
    def key(self) -> str:
        return f"order-{self.number}"

    @property
    def timer(self) -> str:
        """The unique key of its timer."""
        return f"{self.key}-timeout"


class Shop:
    """Places orders until it is closed. At the end, `expected` says which timers must have been delivered."""

    def __init__(self, producer: Producer, admin: Admin, scale: Scale, chance: Random) -> None:
        self._producer = producer  # does not repeat sends itself: a timer might be scheduled twice
        self._admin = admin
        self._scale = scale
        self._chance = chance
        self._is_open = True
        self.orders: list[Order] = []
        self.counts: Counter[str] = Counter()
        self.broken_key = ""  # the first order that expires cannot be closed

    def close(self) -> None:
        self._is_open = False

    @property
    def expected(self) -> dict[str, int]:
        """The key and the due time of each timer that must be delivered."""
        return {order.key: order.due_ms for order in self.orders if not order.is_cancelled}

    def state(self) -> str:
        counts = self.counts
        return f"{counts['placed']} orders placed, {counts['cancelled']} paid, {counts['moved']} extended"

    async def run(self) -> None:
        async with asyncio.TaskGroup() as customers:
            for number in range(self._scale.most_orders):
                if not self._is_open:
                    return
                fate = self._chance.random()
                wait_ms = self._chance.randint(*self._scale.payment_ms)
                pause_ms = self._chance.uniform(0.1, 0.7) * wait_ms
                if fate >= PAID_SHARE + EXTENDED_SHARE and not self.broken_key:
                    self.broken_key = f"order-{number}"
                customers.create_task(self._serve(number, wait_ms, fate, pause_ms))
                await asyncio.sleep(1 / self._scale.orders_per_s)

    async def _serve(self, number: int, wait_ms: int, fate: float, pause_ms: float) -> None:
        """One customer: orders, and pays, asks for more time, or forgets about it."""
        order = Order(number, 0)
        body = json.dumps({"order": number, "amount": 100 + number % 900}).encode()
        placed = OutgoingMessage(ORDERS, body, tag="created", keys=order.key)
        await until_answered(lambda: self._producer.send(placed))
        await self._set_timer(order, body, wait_ms)
        self.orders.append(order)
        self.counts["placed"] += 1
        if fate >= PAID_SHARE + EXTENDED_SHARE:
            return
        await asyncio.sleep(pause_ms / 1_000)
        if fate < PAID_SHARE:
            await self._pay(order)
        else:
            await self._extend(order)

    async def _set_timer(self, order: Order, body: bytes, wait_ms: int) -> None:
        while True:
            order.due_ms = now_ms() + wait_ms
            timer = OutgoingMessage(
                TIMEOUTS, body, keys=order.key, deliver_at_ms=order.due_ms, properties={"UNIQ_KEY": order.timer}
            )
            try:
                await self._producer.send(timer)
                return
            except LaterMQError as error:
                if not error.retriable:
                    raise
            # The answer was lost, or the request. The broker knows which.
            self.counts["unanswered"] += 1
            found = await until_answered(lambda: self._admin.timer_status(TIMEOUTS, unique_key=order.timer))
            if found.verdict != Verdict.NOT_FOUND:
                return
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _pay(self, order: Order) -> None:
        verdict = await _change(lambda: self._admin.cancel_timer(TIMEOUTS, unique_key=order.timer))
        order.is_cancelled = verdict == Verdict.CANCELLED
        self.counts["cancelled" if order.is_cancelled else "paid too late"] += 1

    async def _extend(self, order: Order) -> None:
        due_ms = order.due_ms + EXTENSION_MS
        verdict = await _change(lambda: self._admin.move_timer(TIMEOUTS, unique_key=order.timer, due_ms=due_ms))
        if verdict == Verdict.MOVED:
            order.due_ms = due_ms
        self.counts["moved" if verdict == Verdict.MOVED else "extended too late"] += 1


async def _change(call: Callable[[], Awaitable[list[Outcome]]]) -> Verdict:
    """Cancel or move. If the answer was lost, the same change is requested again, which has the same result."""
    [outcome] = await until_answered(call)
    return outcome.verdict
