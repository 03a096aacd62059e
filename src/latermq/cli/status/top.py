"""`latermq top`: rates, lateness, density of timers, lag and alerts of a cluster, live in the terminal."""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from latermq.cli.event_loop import run
from latermq.cli.options import ConfigFile, Json, Settings, UsageError
from latermq.cli.status.status import DataOfServe, StatusNamesrv, find_cluster

if TYPE_CHECKING:
    import asyncio

    from latermq.config import Config

_EVERY_S = 1.0


def top(
    data: DataOfServe = None,
    namesrv: StatusNamesrv = None,
    once: Annotated[bool, typer.Option("--once", help="Print the state once and exit.")] = False,
    config: ConfigFile = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Show a cluster live: messages and timers per second, lateness, when timers are due, lag and alerts.

    Renews itself every second until q or Ctrl-C. In a pipe, or with --once, it prints the state once.

    Example: latermq top --namesrv 10.0.0.5:9876
    """
    is_live = sys.stdout.isatty() and not once
    if json and is_live:
        raise UsageError("--json needs --once")
    effective, _ = find_cluster(data, namesrv, config, settings)
    run(_show_live(effective) if is_live else _show_once(effective, as_json=json))


async def _show_once(config: "Config", *, as_json: bool) -> None:
    import datetime

    import msgspec
    from rich.console import Console

    from latermq.cli.output import print_json
    from latermq.cli.status.live_states import LiveStates
    from latermq.cli.status.screen import MIN_WIDTH, screen
    from latermq.clock import SystemClock
    from latermq.http.brokers import name_servers_of

    async with LiveStates(config, SystemClock()) as states:
        state = await states.newest()
        await states.ask_lags()
        if as_json:
            lags = [{"group": one.group, "lag": one.lag} for one in states.lags()]
            print_json({**msgspec.to_builtins(state), "groups": lags})
            return
        console = Console(width=None if sys.stdout.isatty() else MIN_WIDTH, highlight=False)
        now = datetime.datetime.now().astimezone()
        console.print(screen(name_servers_of(config), state, states.lags(), "", now))


async def _show_live(config: "Config") -> None:
    import asyncio
    import datetime
    import signal

    from rich.console import Console
    from rich.live import Live

    from latermq.cli.status.live_states import LiveStates
    from latermq.cli.status.screen import screen
    from latermq.clock import SystemClock
    from latermq.errors import LaterMQError
    from latermq.http.brokers import name_servers_of

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    console = Console(highlight=False)
    place, state, trouble = name_servers_of(config), None, "connecting"
    ending = asyncio.create_task(stop.wait())
    async with LiveStates(config, SystemClock()) as states:
        with _keys(loop, stop), Live(console=console, screen=True, auto_refresh=False) as live:
            while not stop.is_set():
                asking = asyncio.create_task(states.newest())
                # A broker that does not answer must not keep the screen from ending.
                await asyncio.wait([asking, ending], return_when=asyncio.FIRST_COMPLETED)
                if not asking.done():
                    asking.cancel()
                    await asyncio.gather(asking, return_exceptions=True)
                    break
                try:
                    state, trouble = asking.result(), ""
                except LaterMQError as error:
                    trouble = f"{error.message}; the figures below are old" if state else error.message
                now = datetime.datetime.now().astimezone()
                live.update(screen(place, state, states.lags(), trouble, now, "q quits"), refresh=True)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(ending), _EVERY_S)
    ending.cancel()


@contextlib.contextmanager
def _keys(loop: "asyncio.AbstractEventLoop", stop: "asyncio.Event") -> Iterator[None]:
    """Read single keys from the terminal: q stops. Restores the terminal at the end."""
    if not sys.stdin.isatty():
        yield
        return
    import os
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def on_key() -> None:
        keys = os.read(fd, 64)
        if not keys or keys.lower() in (b"q", b"\x04"):  # Ctrl-D too; empty: the terminal has gone
            stop.set()

    tty.setcbreak(fd)
    loop.add_reader(fd, on_key)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
