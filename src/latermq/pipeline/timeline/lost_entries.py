"""Entries that the timeline holds beyond the end of a store restored from an old backup. Read without a JVM."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from latermq.handover.cut import FOREVER_MS
from latermq.handover.ingest_claim import (
    CLAIMS,
    IngestClaim,
    claim_epoch,
    claim_path,
    claim_store,
    encode_claim,
    read_claims,
)
from latermq.pipeline.timeline.local_timeline import open_local_timeline
from latermq.pipeline.timeline.root import Root, file_errors, list_files, open_root, read_file, write_file
from latermq.pipeline.windows.attempts import windows_of

KEPT_CLAIMS = 4


@dataclass(frozen=True)
class TimelineExtent:
    """The entries of one store in a timeline, in total and from a given entry on."""

    ingested: int  # all entries below it are in the table
    newest_window: int  # the highest number that has a folder
    far_from_ms: int  # due time of the first far timer from that entry on; FOREVER_MS if there is none
    far_until_ms: int  # due time of the last one; 0 if there is none


def write_claim(root: Root, store_id: str, claim: IngestClaim) -> IngestClaim | None:
    """Record up to which entry the table may soon hold a store. Returns the previous claim.

    Only the driver of an epoch writes the file of that epoch, so no claim is lost if two drivers write at once. The end
    never decreases, even if a driver writes late.
    """
    known = read_claim(root, store_id)
    if known is not None:
        claim = IngestClaim(
            end=max(known.end, claim.end),
            epoch=claim.epoch,
            broker=claim.broker or known.broker,
            address=claim.address or known.address,
        )
    write_file(root, root.at(claim_path(store_id, claim.epoch)), encode_claim(claim))
    _remove_old_claims(root, store_id)
    return known


def _remove_old_claims(root: Root, store_id: str) -> None:
    """Keep the claims of the last few epochs. A driver of one of them may be writing its claim at this moment."""
    names = [name for name in list_files(root, CLAIMS) if claim_store(name) == store_id]
    for name in sorted(names, key=claim_epoch)[:-KEPT_CLAIMS]:
        with file_errors(f"removing an old claim at {root.uri}"), suppress(FileNotFoundError):
            root.files.delete_file(root.at(CLAIMS, name))


def read_claim(root: Root, store_id: str) -> IngestClaim | None:
    """The latest claim of a driver; None if no driver has ingested this store here."""
    return read_claims(
        store_id, lambda: list_files(root, CLAIMS), lambda path: read_file(root, root.at(path)), root.uri
    )


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
