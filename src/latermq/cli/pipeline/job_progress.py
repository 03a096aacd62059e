"""The progress of Spark's jobs, as one line on standard error. Nothing is shown unless that is a terminal."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from latermq.pipeline.remote.sql_exchange import Progress

_EVERY_S = 0.5
_CLEAR = "\r\x1b[K"


@contextmanager
def show_progress(spark: "SparkSession") -> "Iterator[None]":
    """Show the progress of the session's jobs while the block runs."""
    from latermq.pipeline.remote.running_driver import is_connect_session

    if not sys.stderr.isatty():
        yield
        return
    line = _Line()
    if is_connect_session(spark):
        handler = _ConnectHandler(line)
        spark.registerProgressHandler(handler)  # type: ignore[arg-type]
        try:
            yield
        finally:
            spark.removeProgressHandler(handler)  # type: ignore[arg-type]
            line.clear()
        return
    stop = threading.Event()
    watcher = threading.Thread(target=_watch, args=[spark, line, stop], name="latermq-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
        line.clear()


@contextmanager
def progress_line() -> "Iterator[Callable[[Progress], None]]":
    """A function that shows the progress of a query in the driver while the block runs."""
    line = _Line()

    def show(progress: "Progress") -> None:
        if progress.total and sys.stderr.isatty():
            line.show(progress.done, progress.total, progress.running)
        else:
            line.clear()

    try:
        yield show
    finally:
        line.clear()


class _Line:
    def __init__(self) -> None:
        self._is_shown = False

    def show(self, done: int, total: int, running: int) -> None:
        self._is_shown = True
        print(f"{_CLEAR}Spark: {done} of {total} tasks, {running} running", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._is_shown:
            print(_CLEAR, end="", file=sys.stderr, flush=True)
        self._is_shown = False


class _ConnectHandler:
    """Receives the reports of Spark Connect during an operation."""

    def __init__(self, line: _Line) -> None:
        self._line = line

    def __call__(self, stages: Any, inflight_tasks: int, operation_id: Any, done: bool) -> None:
        if done or not stages:
            self._line.clear()
            return
        stages = list(stages)
        total = sum(stage.num_tasks for stage in stages)
        self._line.show(sum(stage.num_completed_tasks for stage in stages), total, inflight_tasks)


def _watch(spark: "SparkSession", line: _Line, stop: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not stop.wait(_EVERY_S):
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        if known:
            total = sum(stage.numTasks for stage in known)
            done = sum(stage.numCompletedTasks for stage in known)
            line.show(done, total, sum(stage.numActiveTasks for stage in known))
        else:
            line.clear()
