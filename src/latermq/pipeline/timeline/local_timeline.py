"""Access to the timeline without a JVM, through delta-rs: one version of the table, and only the needed rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError
from pyarrow import fs

from latermq.arrays import Ints
from latermq.errors import ConfigError, CorruptStore
from latermq.handover.cut import FOREVER_MS
from latermq.handover.window import Window
from latermq.pipeline.timeline.delta_reads import LOG, delta_reads
from latermq.pipeline.timeline.root import Root, file_errors

SCHEMA_VERSION_PROPERTY = "latermq.schema.version"
SCHEMA_VERSION = "2"
# Tables of version 1 are read until a driver has migrated them: their windows may become due before that.
READABLE_VERSIONS = ("1", "2")
_RECORD = pa.large_binary()  # the records of one array may exceed 2 GiB
_NAME = pa.large_string()

_FAR = """
    SELECT entry_offset, timer_id, due_ms, topic || '+' || unique_key AS name, record
    FROM timeline
    WHERE {in_window} AND record IS NOT NULL
"""
_TAKER_NAME = "CASE WHEN kind = 'cancel' THEN unique_key ELSE topic || '+' || unique_key END AS name"
# Finds the same rows as survivors.py; test_pipeline_spark_build.py fails if the two differ.
_SURVIVING_ROWS = f"""
WITH far AS ({_FAR}), placed AS (
    SELECT {_TAKER_NAME}, due_ms, MAX(entry_offset) AS entry_offset
    FROM timeline
    WHERE {{in_window}} AND taker = 1 AND kind <> 'renewal'
    GROUP BY 1, 2
), unplaced AS (
    SELECT {_TAKER_NAME}, MAX(entry_offset) AS entry_offset
    FROM timeline
    WHERE store_id = '{{store_id}}' AND entry_offset < {{cut_entry}} AND taker = 1 AND due_ms IS NULL
    GROUP BY 1
), renewed AS (
    SELECT timer_id, due_ms, MAX(entry_offset) AS entry_offset
    FROM timeline
    WHERE {{in_window}} AND taker = 1 AND kind = 'renewal'
    GROUP BY 1, 2
)
SELECT far.* FROM far
LEFT ANTI JOIN placed
    ON far.name = placed.name AND far.due_ms = placed.due_ms AND placed.entry_offset > far.entry_offset
LEFT ANTI JOIN unplaced ON far.name = unplaced.name AND unplaced.entry_offset > far.entry_offset
LEFT ANTI JOIN renewed
    ON far.timer_id = renewed.timer_id AND far.due_ms = renewed.due_ms AND renewed.entry_offset > far.entry_offset
"""
_SURVIVING_ROWS_1 = f"""
WITH far AS ({_FAR}), change AS (
    SELECT {_TAKER_NAME}, MAX(entry_offset) AS entry_offset
    FROM timeline
    WHERE store_id = '{{store_id}}' AND kind <> 'timer' AND entry_offset < {{cut_entry}}
    GROUP BY 1
)
SELECT far.* FROM far LEFT ANTI JOIN change ON far.name = change.name AND change.entry_offset > far.entry_offset
"""
_ROWS_FROM = """
SELECT entry_offset, kind, due_ms, topic, unique_key, record, '' AS takes FROM timeline
WHERE {of_store} AND taker = 0 AND (kind = 'move' OR record IS NOT NULL)
UNION ALL
SELECT entry_offset, kind, COALESCE(MAX(due_ms), 0), topic, unique_key, NULL, string_agg(CAST(due_ms AS STRING), ',')
FROM timeline WHERE {of_store} AND taker = 1 AND kind = 'cancel'
GROUP BY entry_offset, kind, topic, unique_key
ORDER BY entry_offset
"""
_ROWS_FROM_1 = """
SELECT entry_offset, kind, due_ms, topic, unique_key, record, '' AS takes FROM timeline
WHERE {of_store} AND (kind <> 'timer' OR record IS NOT NULL) ORDER BY entry_offset
"""
_RECORDS = "SELECT entry_offset, record FROM timeline WHERE {in_window} AND record IS NOT NULL"
_TAKERS = """
SELECT COALESCE(SUM(CASE WHEN due_ms IS NOT NULL AND kind <> 'renewal' THEN 1 ELSE 0 END), 0) AS placed,
    COALESCE(SUM(CASE WHEN kind = 'renewal' THEN 1 ELSE 0 END), 0) AS renewals,
    COALESCE(SUM(CASE WHEN due_ms IS NULL THEN 1 ELSE 0 END), 0) AS unplaced
FROM timeline WHERE taker = 1
"""
_CHANGES_1 = """
SELECT 0 AS placed, COALESCE(SUM(CASE WHEN kind = 'timer' THEN 1 ELSE 0 END), 0) AS renewals,
    COALESCE(SUM(CASE WHEN kind <> 'timer' THEN 1 ELSE 0 END), 0) AS unplaced
FROM timeline WHERE kind <> 'timer' OR timer_id <> entry_offset
"""
_UNPLACED = "SELECT COUNT(*) AS takers FROM timeline WHERE taker = 1 AND due_ms IS NULL"


# The takers in the files that were counted last. Counting reads every file with takers, and queries of a running driver
# come more often than files.
_taker_counts: dict[frozenset[str], tuple[int, int, int]] = {}


@dataclass(frozen=True)
class LocalTimeline:
    """One version of one store's timeline."""

    root: Root
    table: DeltaTable
    version: int
    ingested: int  # this version holds all entries below it
    layout: int = 2  # 1 until a driver has migrated the table

    def surviving_rows(self, window: Window) -> Iterator[pa.RecordBatch]:
        """The window's rows that no taker in the table ends: keys, name and record, in any order.

        A row may come twice, and a timer may have several entries.
        """
        sql = (_SURVIVING_ROWS_1 if self.layout == 1 else _SURVIVING_ROWS).format(
            in_window=_window_predicate(window, window.from_ms, window.until_ms - 1),
            store_id=_escaped(window.store_id),
            cut_entry=window.cut_entry,
        )
        return self.query(sql)

    def records(self, window: Window, first_due_ms: int, last_due_ms: int) -> Iterator[pa.RecordBatch]:
        """Entry and record of the window's rows with due times from the first to the last given, both included."""
        return self.query(_RECORDS.format(in_window=_window_predicate(window, first_due_ms, last_due_ms)))

    def records_at(self, store_id: str, places: Sequence[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        """Entry and record of single rows, selected by entry and due time."""
        rows = " OR ".join(f"(due_ms = {due_ms} AND entry_offset = {entry})" for entry, due_ms in places)
        store = _escaped(store_id)
        return self.query(
            f"SELECT entry_offset, record FROM timeline WHERE store_id = '{store}' AND record IS NOT NULL AND ({rows})"
        )

    def far_dues(self, store_id: str, entry: int) -> tuple[int, int]:
        """The first and the last due time of a store's far timers from this entry on."""
        [batch] = self.query(
            f"SELECT COALESCE(MIN(due_ms), {FOREVER_MS}) AS first, COALESCE(MAX(due_ms), 0) AS last FROM timeline "
            f"WHERE store_id = '{_escaped(store_id)}' AND entry_offset >= {entry} AND record IS NOT NULL"
        )
        [row] = batch.to_pylist()
        return row["first"], row["last"]

    def rows_from(self, store_id: str, entry: int) -> Iterator[pa.RecordBatch]:
        """A store's far timers, cancels and moves from this entry on, in order, with the places of what cancels end."""
        of_store = f"store_id = '{_escaped(store_id)}' AND entry_offset >= {entry}"
        return self.query((_ROWS_FROM_1 if self.layout == 1 else _ROWS_FROM).format(of_store=of_store))

    def estimated_rows(self, window: Window) -> int:
        """About how many rows are due in a window, by the statistics of the files, as if due times were even."""
        with delta_reads(self.root, self.root.timeline):
            files = pa.table(self.table.get_add_actions(flatten=True))
        if not files.num_rows:
            return 0
        rows = files.column("num_records").fill_null(0).to_numpy()
        # A file without statistics counts in full.
        low = _statistics(files, "min.due_ms", window.from_ms)
        high = _statistics(files, "max.due_ms", window.from_ms)
        shared = np.minimum(high + 1, window.until_ms) - np.maximum(low, window.from_ms)
        share = np.clip(shared / np.maximum(high + 1 - low, 1), 0, 1)
        for bound, is_outside in (("min.store_id", np.greater), ("max.store_id", np.less)):
            if bound in files.schema.names:
                store_ids = files.column(bound).cast(pa.string()).fill_null(window.store_id).to_pylist()
                share[is_outside(np.array(store_ids, dtype=object), window.store_id)] = 0
        return int((rows * share).sum())

    def taker_counts(self) -> tuple[int, int, int]:
        """The numbers of placed takers other than renewals, of renewals, and of unplaced takers, of all stores."""
        files = frozenset(self.table.file_uris())
        if (known := _taker_counts.get(files)) is not None:
            return known
        [batch] = self.query(_CHANGES_1 if self.layout == 1 else _TAKERS)
        [row] = batch.to_pylist()
        found = row["placed"], row["renewals"], row["unplaced"]
        _taker_counts.clear()  # older versions are not asked for again
        _taker_counts[files] = found
        return found

    def unplaced_takers(self) -> int:
        """The number of takers of all stores without a due time, which every read must consider."""
        if self.layout == 1:
            return 0
        [batch] = self.query(_UNPLACED)
        return int(batch.column("takers")[0].as_py())

    def query(self, sql: str) -> Iterator[pa.RecordBatch]:
        """The rows of a query over the table `timeline`."""
        with delta_reads(self.root, self.root.timeline):
            reader = pa.RecordBatchReader.from_stream(QueryBuilder().register("timeline", self.table).execute(sql))
            for batch in reader:
                yield _without_views(batch)


def open_local_timeline(root: Root, store_id: str, version: int | None = None) -> LocalTimeline | None:
    """A version of the timeline, by default the newest; None if there is no table yet."""
    uri = root.timeline
    with delta_reads(root, uri):
        try:
            table = DeltaTable(uri, version=version, storage_options=root.delta_options)
        except TableNotFoundError as error:
            if not root.is_local and "scheme" in str(error):
                raise
            _check_absence(root)
            return None
        version = table.version()
        schema_version = table.metadata().configuration.get(SCHEMA_VERSION_PROPERTY)
        ingested = table.transaction_version(f"latermq-ingest-{store_id}")
        columns = table.schema().fields
    if schema_version not in READABLE_VERSIONS:
        raise ConfigError(
            f"the timeline {uri} has schema version {schema_version}, not {SCHEMA_VERSION}",
            hint="Use the release that wrote it, or set pipeline.timeline to another folder",
        )
    # A driver that migrates a table sets the version first, so that older releases keep away, and the columns after it.
    layout = 2 if any(column.name == "taker" for column in columns) else 1
    return LocalTimeline(root, table, version, ingested or 0, layout)


def _check_absence(root: Root) -> None:
    """Refuse a folder without a commit that holds data of a table: its log is lost, and a new table would hide that."""
    with file_errors(root.timeline):
        found = root.files.get_file_info(fs.FileSelector(root.at("timeline"), allow_not_found=True))
    data = next((info.base_name for info in found if info.base_name.endswith(".parquet")), None)
    if data is not None:
        raise CorruptStore(
            f"the timeline {root.timeline} is damaged: {LOG} has no commit, but there are data files such as {data}",
            hint="Restore the folder from a backup, or move it away and ingest again what the logs hold "
            '(docs/operations.md, "A moved, damaged or lost timeline")',
        )


def _statistics(files: pa.Table, name: str, default: int) -> Ints:
    """A column of file statistics, with a default for files that have none."""
    if name not in files.schema.names:
        return np.full(files.num_rows, default, np.int64)
    values: Ints = files.column(name).cast(pa.int64()).fill_null(default).to_numpy()
    return values


def _window_predicate(window: Window, first_due_ms: int, last_due_ms: int) -> str:
    return (
        f"store_id = '{_escaped(window.store_id)}' AND due_ms BETWEEN {first_due_ms} AND {last_due_ms} "
        f"AND entry_offset < {window.cut_entry}"
    )


def _escaped(text: str) -> str:
    return text.replace("'", "''")


def _without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with plain strings and binaries instead of views, which pin whole pages in memory and sort slowly."""
    arrays = []
    for column in batch.columns:
        if pa.types.is_int64(column.type):
            arrays.append(column)
        else:
            arrays.append(column.cast(_RECORD if "binary" in str(column.type) else _NAME))
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
