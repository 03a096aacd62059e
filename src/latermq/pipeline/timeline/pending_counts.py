"""Numbers of far timers by due time without a JVM: those of the timeline that no taker ends."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from latermq.arrays import Ints
from latermq.pipeline.timeline.far_reads import Spans
from latermq.pipeline.timeline.local_timeline import LocalTimeline, open_local_timeline
from latermq.pipeline.timeline.root import open_root

_FAR = "{of_stores} AND due_ms BETWEEN {first_ms} AND {last_ms} AND record IS NOT NULL"
# Nothing but due times is read: 10 million in about two seconds.
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
_BUSY_HOURS = 200  # whose seconds are counted


def count_far_timers(root_uri: str, store_ids: Sequence[str], spans: Spans) -> Ints:
    """Return how many far timers of these stores are due in each span."""
    counts = np.zeros(spans.spans, np.int64)
    for dues, sign in _dues(root_uri, store_ids, spans.first_ms, spans.end_ms - 1):
        counts += sign * np.bincount(spans.numbers(dues), minlength=spans.spans)
    return counts


def busiest_far_seconds(
    root_uri: str, store_ids: Sequence[str], first_ms: int, last_ms: int, limit: int
) -> list[tuple[int, int]]:
    """Return the seconds with the most far timers, and how many they have, the heaviest first.

    They are searched for in the hours with the most timers.
    """
    start_ms = first_ms // HOUR_MS * HOUR_MS
    hours = Spans(first_ms, start_ms, HOUR_MS, min(MAX_HOURS, (last_ms - start_ms) // HOUR_MS + 1))
    last_ms = min(last_ms, hours.end_ms - 1)
    by_hour = count_far_timers(root_uri, store_ids, hours)
    busy = np.argsort(-by_hour, kind="stable")[:_BUSY_HOURS]
    busy = busy[by_hour[busy] > 0]
    place = np.full(hours.spans, -1, np.int64)
    place[busy] = np.arange(len(busy))
    counts = np.zeros(len(busy) * _SECONDS, np.int64)
    for dues, sign in _dues(root_uri, store_ids, first_ms, last_ms) if len(busy) else ():
        hour = place[hours.numbers(dues)]
        inside = hour >= 0
        second = (dues[inside] - start_ms) % HOUR_MS // 1_000
        counts += sign * np.bincount(hour[inside] * _SECONDS + second, minlength=len(counts))
    best = np.argsort(-counts, kind="stable")[:limit]
    found = [
        (start_ms + int(busy[at // _SECONDS]) * HOUR_MS + at % _SECONDS * 1_000, int(counts[at]))
        for at in best.tolist()
        if counts[at] > 0
    ]
    return sorted(found, key=lambda one: (-one[1], one[0]))


def _dues(
    root_uri: str, store_ids: Sequence[str], first_ms: int, last_ms: int
) -> Iterator[tuple[Ints, Literal[1, -1]]]:
    """Yield the due times of all far timers, and of those that are ended, to be subtracted."""
    timeline = open_local_timeline(open_root(root_uri), "")
    if timeline is None or timeline.layout == 1 or not store_ids or first_ms > last_ms:
        return
    stores = ", ".join("'" + store_id.replace("'", "''") + "'" for store_id in store_ids)
    fields = {"of_stores": f"store_id IN ({stores})", "first_ms": first_ms, "last_ms": last_ms}
    for batch in timeline.query(_PLAIN.format(**fields)):
        yield batch.column(0).to_numpy(), 1
    for batch in _ended(timeline, fields):
        yield batch.column(0).to_numpy(), -1


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
