"""Pages of far timers without a JVM: those of the timeline that no taker ends, in the order of their due times."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from latermq.arrays import Bools, Ints
from latermq.message.properties import KEYS, REAL_QUEUE_ID, TAGS
from latermq.message.record import decode_record
from latermq.model.timers import PendingTimer
from latermq.pipeline.timeline.far_reads import FarPlace, FarRead, FarSpan, FarTimer
from latermq.pipeline.timeline.local_timeline import LocalTimeline, open_local_timeline
from latermq.pipeline.timeline.root import open_root

SAMPLE_BYTES = 64
_FIRST_FACTOR, _NEXT_FACTOR = 4, 16  # rows that a query spans for each row that is wanted: some of them are ended
_PAGE = """
WITH far AS (
    SELECT store_id, entry_offset, timer_id, due_ms, topic || '+' || unique_key AS name, topic, unique_key, record
    FROM timeline
    WHERE {of_stores} AND due_ms BETWEEN {first_ms} AND {last_ms} AND record IS NOT NULL {of_topic}
), takers AS (
    SELECT store_id, kind, timer_id, due_ms, entry_offset,
        CASE WHEN kind = 'cancel' THEN unique_key ELSE topic || '+' || unique_key END AS name
    FROM timeline
    WHERE {of_stores} AND taker = 1 AND (due_ms IS NULL OR due_ms BETWEEN {first_ms} AND {last_ms})
), placed AS (
    SELECT store_id, name, due_ms, MAX(entry_offset) AS entry_offset FROM takers
    WHERE due_ms IS NOT NULL AND kind <> 'renewal' GROUP BY 1, 2, 3
), unplaced AS (
    SELECT store_id, name, MAX(entry_offset) AS entry_offset FROM takers WHERE due_ms IS NULL GROUP BY 1, 2
), renewed AS (
    SELECT store_id, timer_id, due_ms, MAX(entry_offset) AS entry_offset FROM takers
    WHERE due_ms IS NOT NULL AND kind = 'renewal' GROUP BY 1, 2, 3
)
SELECT far.store_id, far.entry_offset, far.timer_id, far.due_ms, far.topic, far.unique_key, far.record FROM far
LEFT ANTI JOIN placed ON far.store_id = placed.store_id AND far.name = placed.name AND far.due_ms = placed.due_ms
    AND placed.entry_offset > far.entry_offset
LEFT ANTI JOIN unplaced ON far.store_id = unplaced.store_id AND far.name = unplaced.name
    AND unplaced.entry_offset > far.entry_offset
LEFT ANTI JOIN renewed ON far.store_id = renewed.store_id AND far.timer_id = renewed.timer_id
    AND far.due_ms = renewed.due_ms AND renewed.entry_offset > far.entry_offset
WHERE far.due_ms > {after_ms} OR (far.due_ms = {after_ms} AND (far.store_id > '{after_store}'
    OR (far.store_id = '{after_store}' AND far.entry_offset > {after_entry})))
ORDER BY far.due_ms, far.store_id, far.entry_offset LIMIT {limit}
"""


def read_far_timers(root_uri: str, store_ids: Sequence[str], span: FarSpan, after: FarPlace, limit: int) -> FarRead:
    """Return the first far timers of these stores after a place. They are those of the last ingest."""
    timeline = open_local_timeline(open_root(root_uri), "")
    if timeline is None or timeline.layout == 1 or not store_ids:
        return FarRead([], None)
    files = _files(timeline, store_ids, span.topic)
    first_ms = max(span.first_ms, after.due_ms)
    last_known_ms = min(span.last_ms, int(files.last_ms.max(initial=-1)))
    rows = limit * _FIRST_FACTOR
    while first_ms <= last_known_ms:
        last_ms = min(last_known_ms, _end_of(files, first_ms, last_known_ms, rows))
        found = _query(timeline, store_ids, FarSpan(span.topic, first_ms, last_ms), after, limit)
        if len(found) >= limit:
            return FarRead(_distinct(found), _place_of(found[-1]))
        if last_ms >= last_known_ms:
            return FarRead(_distinct(found), None)
        rows *= _NEXT_FACTOR
    return FarRead([], None)


def _query(
    timeline: LocalTimeline, store_ids: Sequence[str], span: FarSpan, after: FarPlace, limit: int
) -> list[dict[str, Any]]:
    stores = ", ".join(f"'{_escaped(store_id)}'" for store_id in store_ids)
    sql = _PAGE.format(
        of_stores=f"store_id IN ({stores})",
        of_topic=f"AND topic = '{_escaped(span.topic)}'" if span.topic else "",
        first_ms=span.first_ms,
        last_ms=span.last_ms,
        after_ms=after.due_ms,
        after_store=_escaped(after.store_id),
        after_entry=after.entry,
        limit=limit,
    )
    return [row for batch in timeline.query(sql) for row in batch.to_pylist()]


def _distinct(rows: list[dict[str, Any]]) -> list[FarTimer]:
    """Return each timer once: an ingest that was repeated may have written it twice."""
    seen: set[tuple[str, int]] = set()
    found: list[FarTimer] = []
    for row in rows:
        identity = row["store_id"], row["timer_id"]
        if identity not in seen:
            seen.add(identity)
            found.append(FarTimer(_place_of(row), _timer_of(row)))
    return found


def _place_of(row: dict[str, Any]) -> FarPlace:
    return FarPlace(row["due_ms"], row["store_id"], row["entry_offset"])


def _timer_of(row: dict[str, Any]) -> PendingTimer:
    message = decode_record(row["record"])
    properties = message.properties
    sample = message.body[:SAMPLE_BYTES].decode(errors="replace")
    return PendingTimer(
        row["timer_id"],
        row["topic"],
        row["unique_key"],
        properties.get(KEYS, ""),
        properties.get(TAGS, ""),
        row["due_ms"],
        int(properties.get(REAL_QUEUE_ID, "0")),
        message.store_timestamp_ms,
        len(message.body),
        "".join(letter if letter.isprintable() else "." for letter in sample),
    )


class _Files(NamedTuple):
    """Due times and numbers of rows of the timeline's files. Takers without a time have none."""

    first_ms: Ints
    last_ms: Ints
    rows: Ints


def _files(timeline: LocalTimeline, store_ids: Sequence[str], topic: str) -> _Files:
    """Return the files that may have timers of these stores and of this topic."""
    actions = pa.table(timeline.table.get_add_actions(flatten=True))
    if "min.due_ms" not in actions.schema.names:
        empty = np.zeros(0, np.int64)
        return _Files(empty, empty, empty)
    first, last, rows = (
        actions.column(name).cast(pa.int64()).fill_null(0).to_numpy()
        for name in ("min.due_ms", "max.due_ms", "num_records")
    )
    found = _may_have(actions, "store_id", store_ids) & _may_have(actions, "topic", [topic] if topic else [])
    return _Files(first[found], last[found], rows[found])


def _may_have(files: pa.Table, column: str, values: Sequence[str]) -> Bools:
    """Tell which files may have one of these values, or any value if there are none."""
    bounds = f"min.{column}", f"max.{column}"
    if not values or not set(bounds) <= set(files.schema.names):
        return np.ones(files.num_rows, bool)
    least, most = (files.column(name).cast(pa.string()).to_pylist() for name in bounds)
    return np.array(
        [
            low is None or high is None or any(low <= value <= high for value in values)
            for low, high in zip(least, most, strict=True)
        ],
        bool,
    )


def _end_of(files: _Files, first_ms: int, last_ms: int, wanted: int) -> int:
    """Return up to when about so many rows are due, as if the due times in each file were even."""
    spans = np.maximum(files.last_ms + 1 - files.first_ms, 1)
    low, high = first_ms, last_ms
    while low < high:
        middle = (low + high) // 2
        shared = np.minimum(files.last_ms, middle) + 1 - np.maximum(files.first_ms, first_ms)
        if float((files.rows * np.clip(shared / spans, 0, 1)).sum()) >= wanted:
            high = middle
        else:
            low = middle + 1
    return low


def _escaped(text: str) -> str:
    return text.replace("'", "''")
