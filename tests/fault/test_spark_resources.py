"""A full disk under the timeline, and a Spark without memory: near timers are on time, and every timer arrives once."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from latermq.pipeline.driver.link import BrokerLink
from tests.fault.test_spark_faults import SETTINGS, SLOW_S, WINDOW_MS, Scene
from tests.interop.waiting import wait_until
from tests.support.needs import need_tool, small_tmpfs
from tests.support.pipeline.pipeline_process import PipelineProcess, pipeline_process
from tests.support.pipeline.ticking_clock import TickingClock
from tests.support.serving import serving

pytestmark = [pytest.mark.real, pytest.mark.timeout(1_500)]
_CHUNK = bytes(1 << 16)
# More than the driver has, in one task.
TOO_MUCH = """
import latermq.pipeline
spark = latermq.pipeline.connect()
spark.sql("SELECT size(collect_list(concat(repeat('x', 4000000), id))) FROM range(0, 1000, 1, 1)").show()
"""


class Pipeline:
    """A broker with a clock of its own, and one driver after the other."""

    def __init__(self, folder: Path, timeline: Path, lives: ExitStack, *settings: str) -> None:
        words = (*SETTINGS, f"pipeline.timeline={timeline}", *settings)
        self._options = [word for setting in words for word in ("--set", setting)]
        self._timeline, self._lives = timeline, lives
        self.clock = lives.enter_context(TickingClock(folder / "clock", time.time_ns() // 1_000_000))
        self.server = lives.enter_context(serving(folder / "data", *self._options, *self.clock.settings))
        self.link = lives.enter_context(BrokerLink(self.server.broker, patience_s=30.0))
        self.scene = Scene(self.server, self.clock, self.link)

    def start_driver(self) -> PipelineProcess:
        driver = pipeline_process(self.server.namesrv, self._timeline, *self._options)
        return self._lives.enter_context(driver)

    def wait_for_cut(self) -> int:
        """Wait until Spark takes far timers, and return a time that is far."""
        wait_until(lambda: self.link.state().ingest_offset, SLOW_S, "the ingest of the first cut")
        return self.link.state().cuts[-1].handback_ms + 60_000


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Leave no free byte on the disk of a folder."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        size = len(_CHUNK)
        while size:
            try:
                file.write(_CHUNK[:size])
            except OSError:
                size //= 2
        yield
    path.unlink()


def test_a_full_disk_under_the_timeline_delays_far_timers_alone(tmp_path: Path) -> None:
    need_tool("java", "Spark requires it")
    with small_tmpfs(tmp_path / "disk", "64m") as disk, ExitStack() as lives:
        pipeline = Pipeline(tmp_path, disk / "pipeline", lives)
        scene, clock = pipeline.scene, pipeline.clock
        driver = pipeline.start_driver()
        first_ms = pipeline.wait_for_cut()
        last_ms = first_ms + 4 * WINDOW_MS
        scene.schedule("first", 20, first_ms)
        scene.schedule("last", 20, last_ms)
        scene.wait_for_ingest()
        with filled(disk):
            scene.schedule("unwritten", 5, last_ms + 100)
            driver.wait_for("disk full: ", SLOW_S)
            assert "Free disk space" in driver.printed()
            scene.check_near_timers("full")
            # The window of the first ones is due for its build, which fails in the driver and in the broker.
            clock.leap_to(first_ms - 25_000)
            wait_until(lambda: "disk full: " in pipeline.server.log(), SLOW_S, "the broker's line")
            assert "Free disk space" in pipeline.server.log()
            clock.leap_to(first_ms + 5_000)
            scene.check_near_timers("late")
        scene.wait_for_ingest()
        wait_until(lambda: "resumed" in driver.printed(), SLOW_S, "the end of the stall")
        clock.leap_to(last_ms + 1_000)
        scene.check_all()
        assert "Traceback" not in driver.printed() + pipeline.server.log()


def test_a_spark_without_memory_ends_with_a_reason_and_nothing_is_lost(tmp_path: Path) -> None:
    need_tool("java", "Spark requires it")
    timeline = tmp_path / "data" / "pipeline"
    with ExitStack() as lives:
        pipeline = Pipeline(tmp_path, timeline, lives, "pipeline.driver_memory=512MiB")
        scene, clock = pipeline.scene, pipeline.clock
        driver = pipeline.start_driver()
        first_ms = pipeline.wait_for_cut()
        scene.schedule("first", 20, first_ms)
        scene.wait_for_ingest()
        driver.wait_for("latermq ready", SLOW_S)
        environment = {**os.environ, "NAMESRV_ADDR": pipeline.server.namesrv}
        asked = subprocess.run(
            [sys.executable, "-c", TOO_MUCH],
            env=environment,
            capture_output=True,
            text=True,
            timeout=SLOW_S,
            check=False,
        )
        assert asked.returncode != 0
        assert driver.wait_for_exit(SLOW_S) == 1
        [said] = [line for line in driver.printed().splitlines() if line.startswith("error: ")]
        assert said == "error: Spark ran out of memory and has exited"
        assert "Raise pipeline.driver_memory" in driver.printed()
        scene.schedule("second", 20, first_ms + WINDOW_MS)
        scene.check_near_timers("without")
        pipeline.start_driver()
        scene.wait_for_ingest()
        clock.leap_to(first_ms + WINDOW_MS + 1_000)
        scene.check_all()
