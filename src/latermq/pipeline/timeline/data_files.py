"""The data files of one version of the timeline, by the statistics in the table's log."""

from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable

# A file with this prefix holds rows of one store, sorted by due time and entry. Ingest appends files of any order.
SORTED_PREFIX = "sorted-"
TIMER, TAKER = 0, 1  # values of the column `taker`


@dataclass(frozen=True)
class DataFile:
    """One file. `from_ms` and `last_ms` are the due times of its first and last timer, both None if unknown."""

    path: str
    size_bytes: int
    rows: int
    store_id: str | None  # None if the file holds rows of several stores, or has no statistics
    from_ms: int | None
    last_ms: int | None
    last_entry: int | None
    unplaced: int  # rows without a due time
    first_entry: int | None = None
    has_takers: bool = True  # also if that is unknown

    @property
    def is_sorted(self) -> bool:
        return self.path.startswith(SORTED_PREFIX) and self.store_id is not None


def data_files(table: DeltaTable) -> list[DataFile]:
    """The files of the version of the table that is open."""
    actions = pa.table(table.get_add_actions(flatten=True))
    return [_data_file(row) for row in actions.to_pylist()]


def _data_file(row: dict[str, object]) -> DataFile:
    def number(name: str) -> int | None:
        value = row.get(name)
        return int(value) if isinstance(value, int) else None

    first_store, last_store = row.get("min.store_id"), row.get("max.store_id")
    return DataFile(
        path=str(row["path"]),
        size_bytes=number("size_bytes") or 0,
        rows=number("num_records") or 0,
        store_id=first_store if isinstance(first_store, str) and first_store == last_store else None,
        from_ms=number("min.due_ms"),
        last_ms=number("max.due_ms"),
        last_entry=number("max.entry_offset"),
        unplaced=number("null_count.due_ms") or 0,
        first_entry=number("min.entry_offset"),
        has_takers=number("max.taker") != TIMER,
    )
