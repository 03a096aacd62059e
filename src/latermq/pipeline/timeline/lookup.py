"""Lookup of single records in the timeline without a JVM, to move far timers that the log no longer holds."""

from collections.abc import Sequence

from latermq.errors import ServiceUnavailable
from latermq.pipeline.timeline.local_timeline import open_local_timeline
from latermq.pipeline.timeline.root import open_root


def find_records(root_uri: str, store_id: str, places: Sequence[tuple[int, int]]) -> dict[int, bytes]:
    """The records of these entries. Each is given with its due time, because the table is clustered by due time."""
    timeline = open_local_timeline(open_root(root_uri), store_id)
    found: dict[int, bytes] = {}
    for batch in timeline.records_at(store_id, places) if timeline is not None else ():
        columns = (batch.column(name).to_pylist() for name in ("entry_offset", "record"))
        found |= dict(zip(*columns, strict=True))
    missing = [entry for entry, _ in places if entry not in found]
    if missing:
        raise ServiceUnavailable(
            f"the timeline has no record for entry {missing[0]}",
            hint="Check pipeline.timeline",
        )
    return found
