"""How many far timers are due in each second, by data file.

A file of a Delta table never changes, so its counts are kept: the next read opens only the files that are new since.
They need about five bytes for each second in which a file has timers.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from latermq.arrays import AnyArray, Indices, Ints
from latermq.pipeline.timeline.data_files import TAKER, TIMER, DataFile
from latermq.pipeline.timeline.root import Root
from latermq.pipeline.timeline.sorted_files import TABLE

SECOND_MS = 1_000
_BATCH_ROWS = 1 << 18  # of a file that is read at once


class SecondCounts(NamedTuple):
    """The seconds in which timers are due, in order, and how many. The arrays are as narrow as their values permit."""

    first_s: int
    offsets: AnyArray  # in seconds after the first one
    counts: AnyArray

    @property
    def size_bytes(self) -> int:
        return int(self.offsets.nbytes + self.counts.nbytes)

    def places_of(self, seconds: Ints) -> Indices:
        """Return where the first entry at or after each of these seconds is. The seconds are in order."""
        places = np.zeros(len(seconds), np.intp)
        if len(self.offsets):
            low, high = np.searchsorted(seconds, [self.first_s, self.first_s + int(self.offsets[-1]) + 1])
            # Numbers of another type would have numpy convert the whole array.
            wanted = (seconds[low:high] - self.first_s).astype(self.offsets.dtype)
            places[low:high] = np.searchsorted(self.offsets, wanted)
            places[high:] = len(self.offsets)
        return places

    def sums(self, edges_s: Ints) -> Ints:
        """Return how many timers are due from each of these seconds to the next one."""
        total = np.append(0, np.cumsum(self.counts, dtype=np.int64))
        sums: Ints = np.diff(total[self.places_of(edges_s)])
        return sums

    def heaviest(self, edges_s: Ints) -> Ints:
        """Return how many timers the heaviest second has, from each of these seconds to the next one."""
        places = self.places_of(edges_s)
        starts, ends = places[:-1], places[1:]
        has_timers = starts < ends
        found = np.zeros(len(starts), np.int64)
        if has_timers.any():
            found[has_timers] = np.maximum.reduceat(self.counts[: ends[-1]], starts[has_timers])
        return found

    def between(self, first_s: int, end_s: int) -> tuple[Ints, Ints]:
        """Return the seconds from a first one to an end that have timers, and how many each of them has."""
        low, high = self.places_of(np.array([first_s, max(first_s, end_s)]))
        return self.first_s + self.offsets[low:high].astype(np.int64), self.counts[low:high].astype(np.int64)


def counts_of(seconds: Iterable[Ints]) -> SecondCounts:
    """Count how often each second is there."""
    found = [_runs(part) for part in seconds if len(part)]
    if not found:
        return SecondCounts(0, np.zeros(0, np.uint8), np.zeros(0, np.uint8))
    seconds_, counts = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if not (seconds_[1:] > seconds_[:-1]).all():
        order = np.argsort(seconds_, kind="stable")
        seconds_ = seconds_[order]
        starts = _starts(seconds_)
        seconds_, counts = seconds_[starts], np.add.reduceat(counts[order], starts)
    offsets = seconds_ - seconds_[0]
    return SecondCounts(
        int(seconds_[0]),
        offsets.astype(np.min_scalar_type(int(offsets[-1]))),
        counts.astype(np.min_scalar_type(int(counts.max()))),
    )


def _runs(seconds: Ints) -> tuple[Ints, Ints]:
    if not (seconds[1:] >= seconds[:-1]).all():
        seconds = np.sort(seconds)
    starts = _starts(seconds)
    return seconds[starts], np.diff(np.append(starts, len(seconds)))


def _starts(values: Ints) -> Ints:
    """Return where each value of a sorted array begins."""
    return np.flatnonzero(np.append(True, values[1:] != values[:-1]))


def read_second_counts(root: Root, file: DataFile) -> dict[str, SecondCounts]:
    """Read the counts of a data file, by store. Far timers are its rows with a record."""
    dues: dict[str, list[Ints]] = {}
    with root.files.open_input_file(root.at(TABLE, file.path)) as source:
        parquet = pq.ParquetFile(source, pre_buffer=False)
        for number in range(parquet.num_row_groups):
            for batch in _far_rows(parquet, number, has_one_store=file.store_id is not None):
                due_ms = batch.column("due_ms")
                if file.store_id is not None:
                    dues.setdefault(file.store_id, []).append(_seconds_of(due_ms))
                    continue
                stores = batch.column("store_id")
                for store_id in pc.unique(stores).to_pylist():
                    dues.setdefault(store_id, []).append(_seconds_of(due_ms.filter(pc.equal(stores, store_id))))
    return {store_id: counts_of(parts) for store_id, parts in dues.items()}


def _seconds_of(due_ms: pa.Array) -> Ints:
    seconds: Ints = due_ms.drop_null().to_numpy(zero_copy_only=False) // SECOND_MS
    return seconds


def _far_rows(parquet: pq.ParquetFile, number: int, *, has_one_store: bool) -> Iterator[pa.RecordBatch]:
    """Yield due times and stores of the far timers in a row group. Records, most of a file, are read if they must."""
    rows = parquet.metadata.row_group(number).num_rows
    nulls = _nulls(parquet, number)
    if nulls == rows:
        return
    columns = ["due_ms"] if has_one_store else ["due_ms", "store_id"]
    if nulls == 0:
        yield from _batches(parquet, number, columns)
    elif nulls is not None and nulls == _takers(parquet, number):  # which alone have no record
        for batch in _batches(parquet, number, [*columns, "taker"]):
            yield batch.filter(pc.not_equal(batch.column("taker").fill_null(TIMER), TAKER))
    else:
        for batch in _batches(parquet, number, [*columns, "record"]):
            yield batch.filter(pc.is_valid(batch.column("record")))


def _batches(parquet: pq.ParquetFile, number: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    batches: Iterator[pa.RecordBatch] = parquet.iter_batches(
        _BATCH_ROWS, row_groups=[number], columns=columns, use_threads=False
    )
    return batches


def _nulls(parquet: pq.ParquetFile, number: int) -> int | None:
    """Return how many rows of a row group have no record, if its statistics say so."""
    group = parquet.metadata.row_group(number)
    column = next(group.column(at) for at in range(group.num_columns) if group.column(at).path_in_schema == "record")
    statistics = column.statistics
    return int(statistics.null_count) if statistics is not None and statistics.has_null_count else None


def _takers(parquet: pq.ParquetFile, number: int) -> int | None:
    if "taker" not in parquet.schema_arrow.names:
        return None
    return sum(
        int(pc.sum(pc.equal(batch.column("taker"), TAKER)).as_py() or 0)
        for batch in _batches(parquet, number, ["taker"])
    )


class KeptCounts:
    """The counts of the newest version's files, up to a number of bytes. Further files are read each time."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept_bytes = 0
        self._kept: dict[tuple[str, str], dict[str, SecondCounts]] = {}

    def statistics(self) -> dict[str, int]:
        """Files whose counts are kept, and their size."""
        return {"files": len(self._kept), "bytes": self._kept_bytes}

    def forget_others(self, root: Root, files: Iterable[DataFile]) -> None:
        """Forget the files that are not of this version."""
        known = {(root.uri, file.path) for file in files}
        for key in self._kept.keys() - known:
            self._kept_bytes -= _size_bytes(self._kept.pop(key))

    def of(self, root: Root, file: DataFile) -> Mapping[str, SecondCounts]:
        """Return the counts of a file by store, and read it unless they are kept."""
        key = root.uri, file.path
        if (kept := self._kept.get(key)) is not None:
            return kept
        found = read_second_counts(root, file)
        size_bytes = _size_bytes(found)
        if self._kept_bytes + size_bytes <= self._max_bytes:
            self._kept[key] = found
            self._kept_bytes += size_bytes
        return found


def _size_bytes(counts: Mapping[str, SecondCounts]) -> int:
    return _ENTRY_BYTES + sum(one.size_bytes for one in counts.values())


_ENTRY_BYTES = 1_000  # of a file's name and objects
