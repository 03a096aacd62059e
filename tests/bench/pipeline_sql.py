"""`latermq pipeline sql` as users run it: the command over a timeline of a given size, alongside all parts of a server.

The broker never scheduled the timers of the timeline: Spark makes them, in the name of the broker's store.
"""

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from latermq.config import PipelineConfig
from latermq.errors import LaterMQError
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.remote.running_driver import look_up_driver
from latermq.pipeline.timeline.root import Root, open_root
from tests.bench.contenders import LATERMQ
from tests.bench.load import Figures
from tests.bench.scenarios import Row
from tests.bench.sizes import Sizes
from tests.bench.timeline_rows import DAY_MS, SPREAD_MS, fill_compacted
from tests.interop.waiting import wait_until
from tests.support.serving import Server, serving

_WAIT_S = 600.0
_COUNT = "SELECT count(*) AS timers, min(due) AS first, max(due) AS last FROM pending"
_OF_A_DAY = (
    "SELECT topic, count(*) AS timers FROM pending WHERE due >= TIMESTAMP '{}' AND due < TIMESTAMP '{}' GROUP BY 1"
)
_PER_DAY = "SELECT date_trunc('day', due) AS day, count(*) AS timers FROM pending GROUP BY 1 ORDER BY 1"
_WARM_RUNS = 3
_NO_DRIVER = "starting Spark for this command"
# Without a driver far timers go to the timeline as well, and the broker reports where it is.
_ENABLED = ("--set", "pipeline.enabled=true")


def run_pipeline_sql(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """The figures of one table after the other, each made and then removed."""
    for rows in sizes.timeline_rows:
        own = folder / str(rows)
        own.mkdir()
        yield Row(f"pipeline-sql {rows:,}", LATERMQ, 0, SqlBench(own, rows).run())
        shutil.rmtree(own)


class SqlBench:
    """One server and its timeline."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._rows = rows
        self._pending = 0
        self._day: tuple[str, str] = ("", "")
        self._pending_of_day = 0
        self._figures: Figures = {}

    def run(self) -> Figures:
        with serving(self._data, *_ENABLED, timeout_s=_WAIT_S) as server, BrokerLink(server.broker) as link:
            store_id = link.state().store_id
        self._fill(open_root(str(self._data / "pipeline")), store_id)
        self._measure_with_driver()
        with serving(self._data, *_ENABLED, timeout_s=_WAIT_S) as server:
            self._count_day(server, "a day, without a driver", has_driver=False)
        return self._figures

    def _fill(self, root: Root, store_id: str) -> None:
        # All timers are due far enough ahead that no window is built while this runs.
        start_ms = (time.time_ns() // 1_000_000 // DAY_MS + 3) * DAY_MS
        made = fill_compacted(self._folder, root, self._rows, store_id=store_id, start_ms=start_ms)
        self._pending = made.pending
        # A day without the large window.
        self._pending_of_day = (self._rows - made.large_rows) * DAY_MS // SPREAD_MS
        first, last = (datetime.fromtimestamp((start_ms + days * DAY_MS) / 1000, UTC).isoformat() for days in (5, 6))
        self._day = first, last

    def _measure_with_driver(self) -> None:
        with ExitStack() as stack:
            began_s = time.monotonic()
            server = stack.enter_context(serving(self._data, pipeline=True, timeout_s=_WAIT_S))
            wait_until(self._has_driver, _WAIT_S, "the driver")
            self._figures["start until the driver is ready (s)"] = time.monotonic() - began_s
            self._count_day(server, "a day, cold")
            # It says so either way: the broker may have answered too late for it.
            wait_until(lambda: "warmed up" in server.whole_log(), _WAIT_S, "the driver's own query")
            for name, count in (("a day, warm", self._count_day), ("all timers, warm", self._count_all)):
                warm = []
                for _ in range(_WARM_RUNS):
                    count(server, name)
                    warm.append(self._figures[f"{name} (s)"])
                self._figures[f"{name} (s)"] = statistics.median(warm)
            days = self._query(server, _PER_DAY, "count per day")
            assert sum(day["timers"] for day in days) == self._pending, days

    def _has_driver(self) -> bool:
        driver, _ = look_up_driver(PipelineConfig(), str(self._data / "pipeline"))
        try:
            return driver is not None and bool(driver.status())
        except LaterMQError:
            return False

    def _count_day(self, server: Server, name: str, *, has_driver: bool = True) -> None:
        found = self._query(server, _OF_A_DAY.format(*self._day), name, has_driver=has_driver)
        timers, expected = sum(topic["timers"] for topic in found), self._pending_of_day
        assert abs(timers - expected) < expected / 10 + 10 * expected**0.5, f"{timers}, not about {expected}"

    def _count_all(self, server: Server, name: str) -> None:
        [found] = self._query(server, _COUNT, name)
        assert found["timers"] == self._pending, f"{found} instead of {self._pending} timers"

    def _query(self, server: Server, query: str, name: str, *, has_driver: bool = True) -> list[dict[str, int]]:
        """Run the command, and note the time that it and its CPU take."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("LATERMQ_PIPELINE")}
        before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "latermq", "pipeline", "sql", query, "--json"],
            env=kept | {"NAMESRV_ADDR": server.namesrv},
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
            check=False,
        )
        self._figures[f"{name} (s)"] = time.monotonic() - began_s
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self._figures[f"{name}, CPU of the command (s)"] = cpu_s
        assert done.returncode == 0, done.stderr
        assert (_NO_DRIVER in done.stderr) != has_driver, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]
