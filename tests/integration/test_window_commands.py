"""`latermq pipeline windows` and a real broker process: windows that are blocked, repaired, and skipped over a kill."""

import datetime
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from latermq.pipeline.driver.link import BrokerLink
from tests.integration.command_line import Cli
from tests.support.pipeline.drivers import begin_as_driver, driver_link
from tests.support.serving import Server, serving

pytest.importorskip("deltalake")

PIPELINE = (
    "--no-pipeline", "--set", "pipeline.enabled=true", "--set", "pipeline.near_horizon=10s", "--set",
    "pipeline.window=2s", "--set", "pipeline.ingest_every=1s", "--set", "pipeline.roll_deadline=6s", "--set",
    "store.flush_every=100ms",
)  # fmt: skip


def until(happened: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    give_up_s = time.monotonic() + timeout_s
    while not (found := happened()):
        assert time.monotonic() < give_up_s, "it never happened"
        time.sleep(0.1)
    return found


def arrived(cli: Cli) -> list[str]:
    """Everything in the topic, by a group that never read before."""
    rows = cli.rows("consume", "orders", "--group", f"readers-{time.time_ns()}", "--timeout", "1s")
    return sorted(row["body"] for row in rows)


def states(cli: Cli) -> dict[int, dict[str, Any]]:
    return {row["window"]: row for row in cli.rows("pipeline", "windows")}


def letters(cli: Cli) -> list[str]:
    return sorted(row["body"] for row in cli.rows("dlq", "list", "rmq_sys_timer_dlq"))


def schedule(cli: Cli, name: str, due_ms: int) -> None:
    at = datetime.datetime.fromtimestamp(due_ms / 1000, datetime.UTC)
    cli.run("send", "orders", name, "--at", at.isoformat())


def blocked_windows(server: Server, cli: Cli, root: Path, dues_ms: list[int]) -> list[int]:
    """Put a file where the attempts of the windows of these times would lie; their numbers."""
    with BrokerLink(server.broker) as link:

        def first_of() -> list[int]:
            windows = link.state().windows
            return [one.number for one in windows if one.from_ms <= dues_ms[0] < one.until_ms]

        [first] = until(first_of)
        state = link.state()
    numbers = [first + (due_ms - dues_ms[0]) // 2_000 for due_ms in dues_ms]
    for number in numbers:
        path = root / "windows" / state.store_id / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"in the way")
    return numbers


def test_a_window_in_the_way_is_skipped_over_a_kill_and_another_repaired(tmp_path: Path) -> None:
    root = tmp_path / "pipeline"
    with serving(tmp_path, *PIPELINE) as server:
        cli = Cli(server)
        with driver_link(server.broker, root) as link:
            begin_as_driver(link, root)
            until(lambda: link.state().cuts)
        begin_ms = (time.time_ns() // 1_000_000 + 15_000) // 2_000 * 2_000
        dues_ms = [begin_ms + 500, begin_ms + 2_500, begin_ms + 4_500]
        for name, due_ms in zip("abc", dues_ms, strict=True):
            schedule(cli, f"{name}1", due_ms)
            schedule(cli, f"{name}2", due_ms + 100)
        skipped, repaired = blocked_windows(server, cli, root, [dues_ms[0], dues_ms[2]])
        until(lambda: states(cli).get(repaired, {}).get("state") == "blocked" and time.time() * 1000 > dues_ms[2])
        told = states(cli)
        assert told[skipped]["state"] == "blocked"
        assert str(skipped) in told[skipped]["error"]
        assert arrived(cli) == ["b1", "b2"], "the window between the two is played"

        with BrokerLink(server.broker) as link:
            link.skip_window(skipped)
        os.kill(server.broker_pid(), signal.SIGKILL)
        until(lambda: _skipped(cli, skipped))
        assert letters(cli) == ["a1", "a2"]

        (root / "windows" / _store_id(server) / str(repaired)).unlink()
        cli.run("pipeline", "windows", "--repair", str(repaired))
        until(lambda: len(arrived(cli)) >= 4)
        assert arrived(cli) == ["b1", "b2", "c1", "c2"]
        assert letters(cli) == ["a1", "a2"]
        assert "there is no window 999" in cli.error("pipeline", "windows", "--skip", "999", "--yes")


def _skipped(cli: Cli, number: int) -> bool:
    try:
        out = cli.run("pipeline", "windows", "--skip", str(number), "--yes")[1]
    except AssertionError:  # the broker is being started again
        return False
    return f"window {number} skipped: " in out or f"there is no window {number}" in out


def _store_id(server: Server) -> str:
    with BrokerLink(server.broker) as link:
        return link.state().store_id
