"""The driver's window builds: an attempt of every window that ingest has passed, on Spark if the window is large."""

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from latermq.errors import CorruptStore, LaterMQError, StoreError
from latermq.handover.manifest import WindowFile
from latermq.handover.window import Window, pending_windows
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.spark.pools import ROLL_POOL, use_pool
from latermq.pipeline.spark.spark_failures import spark_errors
from latermq.pipeline.timeline.local_timeline import open_local_timeline
from latermq.pipeline.timeline.root import Root, file_errors, open_root
from latermq.pipeline.timeline.takers import in_layout_2
from latermq.pipeline.windows.attempt_writer import (
    PART_ROWS,
    attempt_name,
    begin_attempt,
    checked_groups,
    discard_attempt,
    part_name,
    publish_attempt,
    row_groups,
    without_duplicates,
    write_part,
)
from latermq.pipeline.windows.attempts import Attempt, attempt_folder, find_attempt
from latermq.pipeline.windows.local_build import TooManyRows, build_locally
from latermq.pipeline.windows.survivors import window_rows, window_shape

_log = logging.getLogger("latermq.pipeline")

MADE_BY = "spark"
MADE_BY_DRIVER = "driver"  # without Spark; `local` is the broker's own build
_PART = pa.schema(
    [
        ("part", pa.int32()),
        ("name", pa.string()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("crc32", pa.int64()),
        ("first_due_ms", pa.int64()),
        ("last_due_ms", pa.int64()),
    ]
)
_PART_DDL = (
    "part int, name string, rows bigint, size_bytes bigint, crc32 bigint, first_due_ms bigint, last_due_ms bigint"
)


def build_ready_windows(
    spark: SparkSession,
    root: Root,
    state: PipelineState,
    report: Callable[[int, str], None],
    *,
    local_rows: int = -1,
    fence: Callable[[], None] = lambda: None,
    on_built: Callable[[], None] = lambda: None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> list[Attempt]:
    """Build an attempt of every window that the broker waits for and ingest has passed. Returns the new attempts.

    An existing attempt is reported again: the earlier report may have been lost, and the broker knows which attempt it
    loads. Windows of at most `local_rows` rows are built without Spark, which is faster for them. `fence` raises when
    another driver has begun. A failed window does not stop later ones from being built. Its error is raised at the end,
    and the broker builds that window itself in time.
    """
    built = []
    errors: list[LaterMQError] = []
    missing = {window.number for window in state.windows if not window.attempt}
    for window in pending_windows(state):
        if window.number not in missing or window.cut_entry > state.ingest_offset:
            continue
        try:
            attempt = find_attempt(root, window)
            if attempt is None:
                began_s = time.monotonic()
                fence()
                attempt = _build_small(root, state, window, local_rows, now_ms=now_ms(), fence=fence)
                if attempt is None:
                    attempt = build_window(spark, root, window, now_ms=now_ms(), fence=fence)
                built.append(attempt)
                on_built()
                _log.info(
                    "window %d built by %s: %d rows in %d files, %.1f s",
                    window.number,
                    attempt.name.partition("-")[0],
                    attempt.manifest.rows,
                    len(attempt.manifest.files),
                    time.monotonic() - began_s,
                )
        except (CorruptStore, StoreError) as error:
            fence()  # the fence may be what failed
            errors.append(error)
            continue
        report(window.number, attempt.name)
    if errors:
        raise errors[0]
    return built


def _build_small(
    root: Root, state: PipelineState, window: Window, local_rows: int, *, now_ms: int, fence: Callable[[], None]
) -> Attempt | None:
    """Build a window without Spark; None if it is too large for that, by its estimate or in fact."""
    timeline = open_local_timeline(root, window.store_id) if local_rows >= 0 else None
    if timeline is None or timeline.estimated_rows(window) > local_rows:
        return None
    try:
        return build_locally(root, state, window, _no_tail, now_ms=now_ms, made_by=MADE_BY_DRIVER, fence=fence)
    except TooManyRows:
        return None


def _no_tail(start: int, until: int) -> Iterator[bytes]:
    raise CorruptStore(
        f"the timeline lacks the entries from {start} to {until}, although ingest has passed them",
        hint="Check whether the table was restored from an old backup",
    )


def build_window(
    spark: SparkSession,
    root: Root,
    window: Window,
    *,
    now_ms: int,
    part_rows: int = PART_ROWS,
    fence: Callable[[], None] = lambda: None,
) -> Attempt:
    """Build an attempt of a window from the timeline's newest version, which holds everything before its cut.

    `fence` raises if another driver has begun in the meantime. The files then do not become an attempt.
    """
    began_s = time.monotonic()
    timeline = open_local_timeline(root, window.store_id)
    ingested = 0 if timeline is None else timeline.ingested
    if timeline is None or ingested < window.cut_entry:
        raise CorruptStore(
            f"the timeline {root.timeline} ends at entry {ingested} of store {window.store_id}, "
            f"but window {window.number} needs all entries below {window.cut_entry}",
            hint="Set pipeline.timeline to the folder that was used before, or restore its newest backup",
        )
    name = attempt_name(MADE_BY, now_ms)
    begin_attempt(root, window, name)
    try:
        with spark_errors(f"building window {window.number} from {root.timeline}"):
            use_pool(spark, ROLL_POOL)
            table = in_layout_2(spark.read.format("delta").option("versionAsOf", timeline.version).load(root.timeline))
            shape = window_shape(table, window, part_rows)
            files = write_parts(window_rows(table, window, shape), root.uri, window, name)
        fence()
        attempt = publish_attempt(
            root,
            window,
            name,
            files,
            made_by=MADE_BY,
            table_version=timeline.version,
            ingest_offset=ingested,
            began_s=began_s,
        )
    except BaseException:
        discard_attempt(root, window, name)
        raise
    return attempt


def write_parts(rows: DataFrame, root_uri: str, window: Window, name: str) -> list[WindowFile]:
    """Have each worker write its sorted rows as one file of the attempt, exactly once. Returns the files in order."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        root = open_root(root_uri)
        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        ends: dict[str, int] = {}
        groups = _record_ends(checked_groups(row_groups(without_duplicates(batches)), window), ends)
        first = next(groups, None)
        if first is None:
            return

        def all_groups() -> Iterator[pa.Table]:
            yield first
            yield from groups

        path = f"{attempt_folder(root, window, name)}/{part_name(number)}"
        with file_errors(f"window {window.number} at {root_uri}"):
            file = write_part(root, path, all_groups())
        values = [number, file.name, file.rows, file.size_bytes, file.crc32, ends["first"], ends["last"]]
        yield pa.RecordBatch.from_pylist([dict(zip(_PART.names, values, strict=True))], _PART)

    found: list[Any] = sorted(rows.mapInArrow(write, _PART_DDL).collect(), key=lambda row: row.part)
    for before, after in itertools.pairwise(found):
        assert before.last_due_ms <= after.first_due_ms, f"parts out of order: {before}, {after}"
    return [WindowFile(row.name, row.rows, row.size_bytes, row.crc32) for row in found]


def _record_ends(groups: Iterator[pa.Table], ends: dict[str, int]) -> Iterator[pa.Table]:
    for group in groups:
        ends.setdefault("first", group.column("due_ms")[0].as_py())
        ends["last"] = group.column("due_ms")[-1].as_py()
        yield group
