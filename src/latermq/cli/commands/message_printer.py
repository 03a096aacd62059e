"""Implements `latermq consume`: prints the messages of a group member, up to a count or until none arrives."""

import asyncio
from collections.abc import Callable

from latermq.cli.output import counted, print_json, print_line, print_note, progress
from latermq.cli.views.message_rows import message_line, message_row
from latermq.client import Message, PushConsumer, Sql
from latermq.errors import QueryNotFound


class MessagePrinter:
    """One run of the command."""

    def __init__(
        self, topic: str, group: str, *, count: int | None, timeout_s: float | None, as_json: bool, raw: bool
    ) -> None:
        self._topic = topic
        self._group = group
        self._count = count
        self._timeout_s = timeout_s
        self._as_json = as_json
        self._raw = raw
        self._received = 0
        self._arrival = asyncio.Event()
        self._advance: Callable[[int], None] = lambda _count: None

    async def run(self, namesrv: str, expression: str | Sql, consume_from: str | int, *, broadcast: bool) -> None:
        consumer = PushConsumer(
            namesrv,
            self._group,
            self._handle,
            concurrency=1,
            model="broadcasting" if broadcast else "clustering",
            consume_from=consume_from,
            shutdown_wait_s=0.0,  # the only handler that may still run is the one that `_handle` blocks for good
        )
        async with consumer:
            await consumer.subscribe(self._topic, expression)
            with progress(f"consuming {self._topic}", self._count, prints_rows=True) as self._advance:
                await self._wait_until_done()
        if self._count is not None and self._received < self._count:
            raise QueryNotFound(
                f"received {self._received} of {self._count} messages, then none for {self._timeout_s:g} s",
                hint=f"`latermq group show {self._group}` shows the group's offsets",
            )
        if not self._as_json:
            print_note(counted(self._received, "message"))

    async def _handle(self, message: Message) -> None:
        if self._received == self._count:
            # Neither handled nor failed: the group's offset stays before it.
            await asyncio.Event().wait()
        if self._as_json:
            print_json(message_row(message))
        else:
            print_line(message_line(message), raw=self._raw)
        self._received += 1
        self._advance(1)
        self._arrival.set()

    async def _wait_until_done(self) -> None:
        while self._count is None or self._received < self._count:
            self._arrival.clear()
            try:
                await asyncio.wait_for(self._arrival.wait(), self._timeout_s)
            except TimeoutError:
                return
