"""Numbers of far timers by due time without a JVM: those of the timeline that no taker ends."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from latermq.arrays import Ints
from latermq.pipeline.timeline.data_files import DataFile, data_files
from latermq.pipeline.timeline.delta_reads import delta_reads
from latermq.pipeline.timeline.far_reads import MAX_DUE_MS, Spans
from latermq.pipeline.timeline.local_timeline import LocalTimeline, open_local_timeline
from latermq.pipeline.timeline.root import open_root
from latermq.pipeline.timeline.second_counts import SECOND_MS, KeptCounts, SecondCounts, counts_of

_FAR = "{of_stores} AND due_ms BETWEEN {first_ms} AND {last_ms} AND record IS NOT NULL"
_PLAIN = f"SELECT due_ms FROM timeline WHERE {_FAR}"
_NAME = "CASE WHEN kind = 'cancel' THEN unique_key ELSE topic || '+' || unique_key END"
_ENDED = f"""
WITH far AS (
    SELECT store_id, entry_offset, timer_id, due_ms, topic || '+' || unique_key AS name FROM timeline WHERE {_FAR}
), takers AS (
    SELECT store_id, kind, timer_id, due_ms, entry_offset, {_NAME} AS name FROM timeline
    WHERE {{of_stores}} AND taker = 1 AND (due_ms IS NULL OR due_ms BETWEEN {{first_ms}} AND {{last_ms}})
), ended AS (
    {{ended}}
)
SELECT due_ms FROM ended
"""
_ENDS = """SELECT far.store_id, far.entry_offset, far.due_ms FROM takers JOIN far ON far.store_id = takers.store_id
    WHERE takers.entry_offset > far.entry_offset AND {is_ended}"""
_BY_PLACED = _ENDS.format(is_ended="far.name = takers.name AND far.due_ms = takers.due_ms AND takers.kind <> 'renewal'")
_BY_RENEWALS = _ENDS.format(
    is_ended="far.timer_id = takers.timer_id AND far.due_ms = takers.due_ms AND takers.kind = 'renewal'"
)
_BY_UNPLACED = _ENDS.format(is_ended="far.name = takers.name AND takers.due_ms IS NULL")
_TAKER_DUES = """
SELECT MIN(due_ms) AS first_ms, MAX(due_ms) AS last_ms FROM timeline
WHERE {of_stores} AND taker = 1 AND due_ms BETWEEN {first_ms} AND {last_ms}
"""
HOUR_MS, _SECONDS = 3_600_000, 3_600
MAX_HOURS = 90_000  # that are searched for busy seconds: ten years
_BUSY_HOURS = 1_000  # whose seconds are counted


class _Ended(NamedTuple):
    """The timers that takers end, from a second on, and the files that say so."""

    root: str
    store_ids: frozenset[str]
    files: frozenset[str]
    first_s: int
    counts: SecondCounts


class PendingCounts:
    """Counts far timers. What it keeps of files and of takers is bounded, and saves most of the next read."""

    def __init__(self, max_bytes: int) -> None:
        self._max_ended_bytes = max_bytes // 2
        self._kept = KeptCounts(max_bytes // 2)
        self._ended: _Ended | None = None

    def statistics(self) -> dict[str, int]:
        """Files whose counts are kept, and the size of all counts."""
        found = self._kept.statistics()
        return {**found, "bytes": found["bytes"] + (self._ended.counts.size_bytes if self._ended is not None else 0)}

    def by_span(self, root_uri: str, store_ids: Sequence[str], spans: Spans) -> Ints:
        """Return how many far timers of these stores are due in each span."""
        counts = np.zeros(spans.spans, np.int64)
        last_ms = spans.end_ms - 1
        timeline = _open(root_uri, store_ids, spans.first_ms, last_ms)
        if timeline is None:
            return counts
        if spans.start_ms % SECOND_MS or spans.length_ms % SECOND_MS:
            parts = _by_due(timeline, store_ids, spans.first_ms, last_ms)
        else:
            whole = _whole_seconds(spans.first_ms, last_ms)
            edges_s = np.clip(_edges_s(spans), whole.first_s, whole.end_s)
            files = self._files_of(timeline, store_ids)
            for found, sign in self._by_second(timeline, files, store_ids, whole):
                counts += sign * found.sums(edges_s)
            parts = self._by_rest(timeline, files, store_ids, whole)
        for dues, signs in parts:
            counts += np.bincount(spans.numbers(dues), signs, spans.spans).astype(np.int64)
        return counts

    def busiest_seconds(
        self, root_uri: str, store_ids: Sequence[str], first_ms: int, last_ms: int, limit: int
    ) -> list[tuple[int, int]]:
        """Return the seconds with the most far timers, and how many they have, the heaviest first.

        They are searched for in the hours that may have the heaviest ones.
        """
        timeline = _open(root_uri, store_ids, first_ms, last_ms)
        if timeline is None:
            return []
        files = self._files_of(timeline, store_ids)
        known_ms = max((last_ms if one.last_ms is None else one.last_ms for one in files), default=0)
        start_ms = first_ms // HOUR_MS * HOUR_MS
        hours = Spans(first_ms, start_ms, HOUR_MS, min(MAX_HOURS, (min(last_ms, known_ms) - start_ms) // HOUR_MS + 1))
        last_ms = min(last_ms, hours.end_ms - 1)
        if first_ms > last_ms:
            return []
        whole = _whole_seconds(first_ms, last_ms)
        rest = list(self._by_rest(timeline, files, store_ids, whole))
        # The sum of what each file may have in one second at most. What is ended makes it less.
        edges_s = np.clip(_edges_s(hours), whole.first_s, whole.end_s)
        bounds = np.zeros(hours.spans, np.int64)
        for found, sign in self._by_second(timeline, files, store_ids, whole):
            if sign > 0:
                bounds += found.heaviest(edges_s)
        for dues, signs in rest:
            np.add.at(bounds, hours.numbers(dues), np.maximum(signs, 0))
        busy = np.sort(np.argsort(-bounds, kind="stable")[:_BUSY_HOURS])
        busy = busy[bounds[busy] > 0]
        cell = np.full(hours.spans, -1, np.int64)  # of the first second of an hour
        cell[busy] = np.arange(len(busy)) * _SECONDS
        counts = np.zeros(len(busy) * _SECONDS, np.int64)
        for found, sign in self._by_second(timeline, files, store_ids, whole):
            _add(counts, found, sign, start_ms // SECOND_MS, edges_s, cell)
        for dues, signs in rest:
            hour = hours.numbers(dues)
            inside = cell[hour] >= 0
            second = (dues[inside] - start_ms) // SECOND_MS % _SECONDS
            np.add.at(counts, cell[hour[inside]] + second, signs[inside])
        return [
            (start_ms + int(busy[at // _SECONDS]) * HOUR_MS + at % _SECONDS * SECOND_MS, int(counts[at]))
            for at in _largest(counts, limit)
        ]

    def _by_second(
        self, timeline: LocalTimeline, files: Sequence[DataFile], store_ids: Sequence[str], whole: "_Seconds"
    ) -> Iterator[tuple[SecondCounts, Literal[1, -1]]]:
        """Yield the counts of files, and of what is ended, to be subtracted. They go beyond the seconds asked for."""
        if whole.first_s >= whole.end_s:
            return
        for counts in self._counts_of_files(timeline, files, store_ids, whole):
            yield counts, 1
        yield self._ended_counts(timeline, files, store_ids, whole.first_s), -1

    def _by_rest(
        self, timeline: LocalTimeline, files: Sequence[DataFile], store_ids: Sequence[str], whole: "_Seconds"
    ) -> Iterator[tuple[Ints, Ints]]:
        """Yield the due times in the seconds of which a span has only a part. Most of them have no timers at all."""
        for low_ms, high_ms in whole.rest:
            second = low_ms // SECOND_MS
            part = _Seconds(second, second + 1, ())
            if any(
                len(counts.between(second, second + 1)[0])
                for counts in self._counts_of_files(timeline, files, store_ids, part)
            ):
                yield from _by_due(timeline, store_ids, low_ms, high_ms)

    def _files_of(self, timeline: LocalTimeline, store_ids: Sequence[str]) -> list[DataFile]:
        """Return the files that may have timers of these stores, and forget what is kept of files that are gone."""
        root = timeline.root
        with delta_reads(root, root.timeline):
            files = data_files(timeline.table)
        self._kept.forget_others(root, files)
        return [file for file in files if file.store_id is None or file.store_id in store_ids]

    def _counts_of_files(
        self,
        timeline: LocalTimeline,
        files: Sequence[DataFile],
        store_ids: Sequence[str],
        seconds: "_Seconds",
    ) -> Iterator[SecondCounts]:
        """Yield the counts of the files that may have timers in these seconds."""
        first_ms, last_ms = seconds.first_s * SECOND_MS, seconds.end_s * SECOND_MS - 1
        root = timeline.root
        with delta_reads(root, root.timeline):
            for file in files:
                if (file.from_ms is None or file.from_ms <= last_ms) and (
                    file.last_ms is None or file.last_ms >= first_ms
                ):
                    found = self._kept.of(root, file)
                    yield from (counts for store_id, counts in found.items() if store_id in store_ids)

    def _ended_counts(
        self, timeline: LocalTimeline, files: Sequence[DataFile], store_ids: Sequence[str], first_s: int
    ) -> SecondCounts:
        """Return the timers that are ended, at least those from a second on."""
        key = timeline.root.uri, frozenset(store_ids), _files_with_ends(files)
        if (known := self._ended) is not None and known[:3] == key and known.first_s <= first_s:
            return known.counts
        fields = _fields(store_ids, first_s * SECOND_MS, MAX_DUE_MS)
        counts = counts_of(batch.column(0).to_numpy() // SECOND_MS for batch in _ended(timeline, fields))
        self._ended = _Ended(*key, first_s, counts) if counts.size_bytes <= self._max_ended_bytes else None
        return counts


class _Seconds(NamedTuple):
    """The whole seconds of a span, and what the span has of the seconds before and after them: first and last time."""

    first_s: int
    end_s: int
    rest: tuple[tuple[int, int], ...]


def _whole_seconds(first_ms: int, last_ms: int) -> _Seconds:
    first_s, end_s = -(-first_ms // SECOND_MS), (last_ms + 1) // SECOND_MS
    if first_s > end_s:  # within one second
        return _Seconds(first_s, first_s, ((first_ms, last_ms),))
    rest = (first_ms, first_s * SECOND_MS - 1), (end_s * SECOND_MS, last_ms)
    return _Seconds(first_s, end_s, tuple((low_ms, high_ms) for low_ms, high_ms in rest if low_ms <= high_ms))


def _edges_s(spans: Spans) -> Ints:
    """Return the seconds at which spans begin, and at which the last one ends."""
    return spans.start_ms // SECOND_MS + np.arange(spans.spans + 1) * (spans.length_ms // SECOND_MS)


def _add(counts: Ints, found: SecondCounts, sign: int, start_s: int, edges_s: Ints, cell: Ints) -> None:
    """Add the seconds of some hours to their cells. The edges are those of all hours from a start on."""
    places = found.places_of(edges_s)
    low, high = places[0], places[-1]
    hours_s = start_s + np.arange(len(cell)) * _SECONDS
    lengths = np.diff(places)
    inside = np.repeat(cell >= 0, lengths)
    cells = np.repeat(cell - hours_s + found.first_s, lengths) + found.offsets[low:high].astype(np.int64)
    counts[cells[inside]] += sign * found.counts[low:high][inside].astype(np.int64)  # which has no second twice


def _largest(counts: Ints, limit: int) -> list[int]:
    """Return where the largest counts above 0 are, the largest first, and of equal ones the first."""
    limit = min(limit, len(counts))
    if not limit:
        return []
    least = max(1, int(np.partition(counts, -limit)[-limit]))
    more = np.flatnonzero(counts > least)
    found = np.append(more, np.flatnonzero(counts == least)[: limit - len(more)])
    return sorted(found.tolist(), key=lambda at: (-counts[at], at))


def _files_with_ends(files: Sequence[DataFile]) -> frozenset[str]:
    """Return the files that decide which timers are ended: those with takers, and with entries before these.

    Takers end earlier entries only. So as long as ingest adds nothing but timers, the answer stays the same.
    """
    last_takers: dict[str | None, float] = {}  # None: of any store
    for file in files:
        if file.has_takers:
            last = math.inf if file.last_entry is None else file.last_entry
            last_takers[file.store_id] = max(last, last_takers.get(file.store_id, last))

    def may_be_ended(file: DataFile) -> bool:
        stores = last_takers if file.store_id is None else (file.store_id, None)
        last = max((last_takers[store] for store in stores if store in last_takers), default=-math.inf)
        return (file.first_entry if file.first_entry is not None else -math.inf) < last

    return frozenset(file.path for file in files if file.has_takers or may_be_ended(file))


def _open(root_uri: str, store_ids: Sequence[str], first_ms: int, last_ms: int) -> LocalTimeline | None:
    """Open a timeline; None if it cannot have any of these timers."""
    timeline = open_local_timeline(open_root(root_uri), "")
    if timeline is None or timeline.layout == 1 or not store_ids or first_ms > last_ms:
        return None
    return timeline


def _fields(store_ids: Sequence[str], first_ms: int, last_ms: int) -> dict[str, Any]:
    stores = ", ".join("'" + store_id.replace("'", "''") + "'" for store_id in store_ids)
    return {"of_stores": f"store_id IN ({stores})", "first_ms": first_ms, "last_ms": last_ms}


def _by_due(
    timeline: LocalTimeline, store_ids: Sequence[str], first_ms: int, last_ms: int
) -> Iterator[tuple[Ints, Ints]]:
    """Yield the due times of far timers and of those that are ended, with 1 and -1."""
    fields = _fields(store_ids, first_ms, last_ms)
    parts: tuple[tuple[Iterator[pa.RecordBatch], Literal[1, -1]], ...] = (
        (timeline.query(_PLAIN.format(**fields)), 1),
        (_ended(timeline, fields), -1),
    )
    for batches, sign in parts:
        for batch in batches:
            yield batch.column(0).to_numpy(), np.full(batch.num_rows, sign, np.int64)


def _ended(timeline: LocalTimeline, fields: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """Query the far timers that are ended. Names of millions take seconds, so only those are read that it may be."""
    placed, renewals, unplaced = timeline.taker_counts()
    if not unplaced:  # all takers have due times, which are those of what they end
        [found] = [row for batch in timeline.query(_TAKER_DUES.format(**fields)) for row in batch.to_pylist()]
        if found["first_ms"] is None:
            return
        fields = fields | found
    kinds = ((placed, _BY_PLACED), (renewals, _BY_RENEWALS), (unplaced, _BY_UNPLACED))
    # A row that is ended by several takers is found several times, and must count once.
    ended = " UNION ".join(sql for count, sql in kinds if count)
    if ended:
        yield from timeline.query(_ENDED.format(**fields, ended=f"SELECT DISTINCT * FROM ({ended})"))
