"""Entries that the timeline holds beyond the end of a store restored from an old backup. Read without a JVM."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from latermq.handover.cut import FOREVER_MS
from latermq.handover.ingest_claim import IngestClaim, claim_path, decode_claim, encode_claim
from latermq.pipeline.timeline.local_timeline import open_local_timeline
from latermq.pipeline.timeline.root import Root, open_root, read_file, write_file
from latermq.pipeline.windows.attempts import windows_of


@dataclass(frozen=True)
class TimelineExtent:
    """The entries of one store in a timeline, in total and from a given entry on."""

    ingested: int  # all entries below it are in the table
    newest_window: int  # the highest number that has a folder
    far_from_ms: int  # due time of the first far timer from that entry on; FOREVER_MS if there is none
    far_until_ms: int  # due time of the last one; 0 if there is none


def write_claim(root: Root, store_id: str, claim: IngestClaim) -> IngestClaim | None:
    """Record up to which entry the table may soon hold a store. Returns the previous claim.

    The end and the epoch never decrease, even if a driver writes late.
    """
    known = read_claim(root, store_id)
    if known is not None:
        claim = IngestClaim(
            end=max(known.end, claim.end),
            epoch=max(known.epoch, claim.epoch),
            broker=claim.broker or known.broker,
            address=claim.address or known.address,
        )
    write_file(root, root.at(claim_path(store_id)), encode_claim(claim))
    return known


def read_claim(root: Root, store_id: str) -> IngestClaim | None:
    """The latest claim of a driver; None if no driver has ingested this store here."""
    path = root.at(claim_path(store_id))
    data = read_file(root, path)
    return None if data is None else decode_claim(data, path)


def read_extent(root_uri: str, store_id: str, entry: int) -> TimelineExtent:
    """The extent of a store's entries in the table and in the window folders."""
    root = open_root(root_uri)
    timeline = open_local_timeline(root, store_id)
    newest = max(windows_of(root, store_id), default=0)
    if timeline is None:
        return TimelineExtent(0, newest, FOREVER_MS, 0)
    from_ms, until_ms = timeline.far_dues(store_id, entry)
    return TimelineExtent(timeline.ingested, newest, from_ms, until_ms)


def rows_from(root_uri: str, store_id: str, entry: int) -> Iterator[dict[str, Any]]:
    """Far timers, cancellations and moves from this entry on, in order. Only far rows have a record."""
    timeline = open_local_timeline(open_root(root_uri), store_id)
    for batch in timeline.rows_from(store_id, entry) if timeline is not None else ():
        yield from batch.to_pylist()
