"""Access to the timeline without a JVM, through delta-rs: one version of the table, and only the needed rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from latermq.errors import ConfigError, CorruptStore, LaterMQError, StoreError
from latermq.handover.cut import FOREVER_MS
from latermq.handover.window import Window
from latermq.pipeline.timeline.root import Root

SCHEMA_VERSION_PROPERTY = "latermq.schema.version"
SCHEMA_VERSION = "1"
_RECORD = pa.large_binary()  # the records of one array may exceed 2 GiB
_NAME = pa.large_string()

# Finds the same rows as survivors.py; test_pipeline_local_build.py fails if the two differ.
_SURVIVING_ROWS = """
WITH far AS (
    SELECT entry_offset, timer_id, due_ms, topic || '+' || unique_key AS name, record
    FROM timeline
    WHERE {in_window} AND kind <> 'cancel' AND record IS NOT NULL
), change AS (
    SELECT CASE WHEN kind = 'cancel' THEN unique_key ELSE topic || '+' || unique_key END AS name,
           MAX(entry_offset) AS entry_offset
    FROM timeline
    WHERE store_id = '{store_id}' AND kind <> 'timer' AND entry_offset < {cut_entry}
    GROUP BY 1
)
SELECT far.* FROM far LEFT ANTI JOIN change ON far.name = change.name AND change.entry_offset > far.entry_offset
"""
_RECORDS = "SELECT entry_offset, record FROM timeline WHERE {in_window} AND record IS NOT NULL"


@dataclass(frozen=True)
class LocalTimeline:
    """One version of one store's timeline."""

    table: DeltaTable
    version: int
    ingested: int  # this version holds all entries below it

    def surviving_rows(self, window: Window) -> Iterator[pa.RecordBatch]:
        """The window's rows not cancelled within the table: keys, name and record, in any order.

        A row may come twice, and a timer may have several entries.
        """
        sql = _SURVIVING_ROWS.format(
            in_window=_window_predicate(window, window.from_ms, window.until_ms - 1),
            store_id=_escaped(window.store_id),
            cut_entry=window.cut_entry,
        )
        return self._query(sql)

    def records(self, window: Window, first_due_ms: int, last_due_ms: int) -> Iterator[pa.RecordBatch]:
        """Entry and record of the window's rows with due times from the first to the last given, both included."""
        return self._query(_RECORDS.format(in_window=_window_predicate(window, first_due_ms, last_due_ms)))

    def records_at(self, store_id: str, places: Sequence[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        """Entry and record of single rows, selected by entry and due time."""
        rows = " OR ".join(f"(due_ms = {due_ms} AND entry_offset = {entry})" for entry, due_ms in places)
        store = _escaped(store_id)
        return self._query(
            f"SELECT entry_offset, record FROM timeline WHERE store_id = '{store}' AND record IS NOT NULL AND ({rows})"
        )

    def far_dues(self, store_id: str, entry: int) -> tuple[int, int]:
        """The first and the last due time of a store's far timers from this entry on."""
        [batch] = self._query(
            f"SELECT COALESCE(MIN(due_ms), {FOREVER_MS}) AS first, COALESCE(MAX(due_ms), 0) AS last FROM timeline "
            f"WHERE store_id = '{_escaped(store_id)}' AND entry_offset >= {entry} AND record IS NOT NULL"
        )
        [row] = batch.to_pylist()
        return row["first"], row["last"]

    def rows_from(self, store_id: str, entry: int) -> Iterator[pa.RecordBatch]:
        """A store's far timers, cancellations and moves from this entry on, in order."""
        return self._query(
            "SELECT entry_offset, kind, due_ms, topic, unique_key, record FROM timeline "
            f"WHERE store_id = '{_escaped(store_id)}' AND entry_offset >= {entry} "
            "AND (kind <> 'timer' OR record IS NOT NULL) ORDER BY entry_offset"
        )

    def _query(self, sql: str) -> Iterator[pa.RecordBatch]:
        try:
            reader = pa.RecordBatchReader.from_stream(QueryBuilder().register("timeline", self.table).execute(sql))
            for batch in reader:
                yield _without_views(batch)
        # A broken file surfaces as an error of whichever layer reads it.
        except (DeltaError, pa.ArrowException, OSError, ValueError) as error:
            raise _read_error(self.table.table_uri, error) from error


def open_local_timeline(root: Root, store_id: str, version: int | None = None) -> LocalTimeline | None:
    """A version of the timeline, by default the newest; None if there is no table yet."""
    uri = root.timeline
    try:
        table = DeltaTable(uri, version=version, storage_options=root.delta_options)
        version = table.version()
        schema_version = table.metadata().configuration.get(SCHEMA_VERSION_PROPERTY)
        ingested = table.transaction_version(f"latermq-ingest-{store_id}")
    except TableNotFoundError as error:
        if not root.is_local and "scheme" in str(error):
            raise _read_error(uri, error) from error
        return None
    except (DeltaError, OSError, ValueError) as error:
        raise _read_error(uri, error) from error
    if schema_version != SCHEMA_VERSION:
        raise ConfigError(
            f"the timeline {uri} has schema version {schema_version}, not {SCHEMA_VERSION}",
            hint="Use the release that wrote it, or set pipeline.timeline to another folder",
        )
    return LocalTimeline(table, version, ingested or 0)


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


def _read_error(uri: str, error: Exception) -> LaterMQError:
    text = " ".join(str(error).split())[:300]
    if any(word in text.lower() for word in ("parquet", "corrupt", "invalid", "checksum", "json", "eof")):
        return CorruptStore(
            f"the timeline {uri} is damaged: {text}", hint="Restore it from a backup; near timers are unaffected"
        )
    return StoreError(f"the timeline {uri} cannot be read: {text}", hint="Check pipeline.timeline; the read is retried")
