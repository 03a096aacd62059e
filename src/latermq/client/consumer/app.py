"""An application of consumers: functions that a decorator registers, run until a signal, with a clean end."""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

import uvloop

from latermq.client.consumer.consumer_settings import ConsumerSettings
from latermq.client.consumer.push_consumer import PushConsumer
from latermq.client.consumer.subscription import ALL, Sql
from latermq.errors import ConfigError, LaterMQError
from latermq.message.names import check_topic
from latermq.message.record import Message
from latermq.retry import Backoff

_log = logging.getLogger("latermq.client")

Function = Callable[[Message], Awaitable[None] | None]
F = TypeVar("F", bound=Function)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0


@dataclass(slots=True)
class _Group:
    """The functions of a group, by topic, and what they subscribe to."""

    settings: ConsumerSettings
    functions: dict[str, Function] = field(default_factory=dict)
    expressions: dict[str, str | Sql] = field(default_factory=dict)


class App:
    """Runs consumers. Register them with `@app.consumer`, then call `app.run()`, or use the app in `async with`.

    A function that returns has handled its message. If it raises, the message is delivered again later, with growing
    delays, until `retries` are used up; then, or at once after `Reject`, it goes to the dead letters of the group.
    Coroutine functions run on the event loop, plain functions in threads. Both may get a message twice, after a crash
    for example, so they should be idempotent.
    """

    def __init__(self, namesrv: str = "127.0.0.1:9876", *, instance: str = "", shutdown_wait_s: float = 30.0) -> None:
        """`shutdown_wait_s` is how long a stop waits for running functions."""
        self._namesrv = namesrv
        self._instance = instance
        self._shutdown_wait_s = shutdown_wait_s
        self._groups: dict[str, _Group] = {}
        self._consumers: dict[str, PushConsumer] = {}
        self._threads: dict[str, concurrent.futures.ThreadPoolExecutor] = {}

    def consumer(
        self,
        topic: str,
        *,
        group: str,
        expression: str | Sql = ALL,
        retries: int | None = None,
        concurrency: int = 20,
        orderly: bool = False,
        consume_from: str | int = "first",
    ) -> Callable[[F], F]:
        """Register a function for the messages of a topic. The function itself stays as it is, for tests.

        - `expression`: tags (`red || blue`) or a `Sql`. `retries`: by default the group's number at the broker, 16.
        - `concurrency`: how many messages are handled at the same time. `orderly`: one at a time per queue, in order.
        - `consume_from`: where a new group starts: "first", "last", or epoch milliseconds.

        A group may have consumers of several topics, which share these settings.
        """
        check_topic(topic)
        settings = ConsumerSettings(
            group=group,
            concurrency=concurrency,
            orderly=orderly,
            consume_from=consume_from,
            max_reconsume_times=retries,
            shutdown_wait_s=self._shutdown_wait_s,
        )

        def register(function: F) -> F:
            if self._consumers:
                raise ConfigError("the app is running", hint="Register all consumers before it starts")
            found = self._groups.setdefault(group, _Group(settings))
            if found.settings != settings:
                raise ConfigError(
                    f"the consumers of group {group!r} have different settings",
                    hint="Give them the same, or a group each",
                )
            if topic in found.functions:
                raise ConfigError(f"group {group!r} has two consumers of topic {topic!r}", hint="Use another group")
            found.functions[topic], found.expressions[topic] = function, expression
            return function

        return register

    def run(self) -> None:
        """Consume until SIGTERM or SIGINT, then finish the running functions. A second signal ends the process."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._run())

    async def start(self) -> None:
        """Start all consumers. Waits until the name server answers."""
        if not self._groups:
            raise ConfigError("the app has no consumers", hint="Register functions with @app.consumer")
        try:
            async with asyncio.TaskGroup() as tasks:
                for name, group in self._groups.items():
                    tasks.create_task(self._start_group(name, group))
        except BaseExceptionGroup as errors:
            await self.close()
            raise errors.exceptions[0] from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Take no more messages, wait for running functions, and store the offsets."""
        consumers, self._consumers = self._consumers, {}
        await asyncio.gather(*(consumer.close() for consumer in consumers.values()))
        threads, self._threads = self._threads, {}
        for pool in threads.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def statistics(self) -> dict[str, dict[str, int]]:
        """Return the counters of each group's consumer."""
        return {name: consumer.statistics() for name, consumer in self._consumers.items()}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()

        def on_signal(number: signal.Signals) -> None:
            if stop.is_set():
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            _log.info("stopping after %s; a second one ends the process at once", number.name)
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal, number)
        starting = asyncio.create_task(self.start())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await starting
                return
            await starting
            _log.info("consuming: %s", ", ".join(sorted(self._groups)))
            await stopping
        finally:
            stopping.cancel()
            await self.close()

    async def _start_group(self, name: str, group: _Group) -> None:
        """Start the consumer of a group. A program may start before its name server."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            consumer = self._new_consumer(name, group)
            for topic, expression in group.expressions.items():
                await consumer.subscribe(topic, expression)
            try:
                await consumer.start()
            except LaterMQError as error:
                if not error.retriable:
                    raise
                pause_s = backoff.next_pause()
                _log.warning("cannot start group %s; trying again in %.1f s: %s", name, pause_s, error)
                await asyncio.sleep(pause_s)
                continue
            self._consumers[name] = consumer
            return

    def _new_consumer(self, name: str, group: _Group) -> PushConsumer:
        settings = group.settings
        return PushConsumer(
            self._namesrv,
            name,
            functools.partial(self._handle, name, group),
            concurrency=settings.concurrency,
            orderly=settings.orderly,
            consume_from=settings.consume_from,
            max_reconsume_times=settings.max_reconsume_times,
            shutdown_wait_s=settings.shutdown_wait_s,
            instance=self._instance,
        )

    async def _handle(self, name: str, group: _Group, message: Message) -> None:
        function = group.functions.get(message.topic)
        if function is None:  # such as a retry of an older version of the program
            raise LookupError(f"group {name!r} has no consumer of topic {message.topic!r}")
        if _is_coroutine_function(function):
            result = function(message)
        else:
            pool = self._threads.get(name)
            if pool is None:
                pool = concurrent.futures.ThreadPoolExecutor(group.settings.concurrency, f"latermq-{name}")
                self._threads[name] = pool
            context = contextvars.copy_context()
            result = await asyncio.get_running_loop().run_in_executor(pool, context.run, function, message)
        if inspect.isawaitable(result):
            await result


def _is_coroutine_function(function: Function) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
