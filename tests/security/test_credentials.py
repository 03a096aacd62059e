"""Credentials in pipeline.timeline: no command line, log line or answer of any process has them."""

import asyncio
import os
from pathlib import Path

import pytest

from latermq.pipeline.driver.link import BrokerLink
from latermq.protocol.remoting.codes import Request
from latermq.server.windows.local_builds import LocalBuilds
from tests.interop.ports import free_port
from tests.interop.waiting import wait_until
from tests.security.attacker import attacking
from tests.support.serving import children_of, command_line, serving

KEY, PASSWORD, TOKEN = "AKIAKEY", "hushhush", "t0ken"
# No file system has this scheme: Arrow says so at once, with the whole URI.
URI = f"nosuch://{KEY}:{PASSWORD}@bucket/timers?sig={TOKEN}"


def is_clean(text: str) -> bool:
    return not any(secret in text for secret in (KEY, PASSWORD, TOKEN))


def shown_by(pid: int) -> tuple[str, str]:
    """Its command line, which every user sees, and its environment, which its own user sees."""
    try:
        return " ".join(command_line(pid)), Path(f"/proc/{pid}/environ").read_bytes().decode()
    except OSError:
        return "", ""


def descendants(pid: int) -> list[int]:
    return [found for child in children_of(pid) for found in (child, *descendants(child))]


def test_credentials_in_the_timelines_uri_are_told_to_nobody(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    options = ("--set", f"pipeline.timeline={URI}", "--set", "pipeline.near_horizon=10s")
    with serving(tmp_path, *options, pipeline=True) as server:
        seen: dict[str, str] = {}

        def driver_failed() -> bool:
            seen.update({str(pid): " ".join(command_line(pid)) for pid in descendants(server.pid)})
            was_seen = any("pipeline run" in line for line in seen.values())
            return was_seen and "pipeline exited" in server.log()

        wait_until(driver_failed, 60, "the driver, which cannot open the folder, and is started again and again")
        assert all(map(is_clean, seen.values())), seen
        assert is_clean(server.ready_line())
        assert "nosuch://***@bucket/timers" in server.log()
        assert is_clean(server.log())
        with attacking(server.port) as stranger, BrokerLink(server.broker) as link:
            settings = stranger.call(Request.GET_BROKER_CONFIG).body.decode()
            assert "pipeline.timeline=nosuch://***@bucket/timers?***" in settings
            assert is_clean(settings)
            assert link.state().timeline == "nosuch://***@bucket/timers?***"
            assert is_clean(str(stranger.call(Request.WINDOW_STATES).body))


def test_the_process_that_builds_has_them_in_its_environment_only() -> None:
    seen: list[tuple[str, str]] = []
    report: list[str] = []

    async def watch() -> None:
        nobody = f"127.0.0.1:{free_port()}"
        builds = LocalBuilds(URI, lambda: nobody, 1_000)
        build = asyncio.create_task(builds.build([7], 3.0, lambda _, error: report.append(error)))
        while not build.done():
            seen.extend(map(shown_by, children_of(os.getpid())))
            await asyncio.sleep(0.05)
        build.exception()

    asyncio.run(watch())
    mine = [(line, environment) for line, environment in seen if "build_process" in line]
    assert mine
    assert all(is_clean(line) for line, _ in mine)
    assert any(PASSWORD in environment for _, environment in mine)
    assert all(map(is_clean, report))
