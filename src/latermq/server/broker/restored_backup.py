"""Detection of a store that was restored from an old backup, at start and before the broker serves clients.

The broker writes again the entries past the store's end that Spark still holds (broker/timers/lost_entries.py). Data
that only the newer store had is lost: its near timers and its messages.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from latermq.broker.timers.far_timers import FarTimers
from latermq.broker.timers.ingest_mark import IngestMark
from latermq.broker.timers.lost_entries import LostEntries, LostRow, TimelineTail
from latermq.broker.timers.pending import PendingTimers
from latermq.errors import ConfigError, LaterMQError
from latermq.handover.ingest_claim import CLAIMS, IngestClaim, read_claims
from latermq.server.broker.pipeline_folder import list_names, read_small_file
from latermq.server.windows.daemon_threads import DaemonThreads
from latermq.store.message_store import MessageStore

_log = structlog.get_logger(__name__)
_CLAIM_TIMEOUT_S = 30.0  # for a remote timeline; if it does not answer, the broker starts anyway


class RestoredBackup:
    """Detects that a store is an old copy, and completes it. Called once, before clients are served."""

    def __init__(
        self,
        store: MessageStore,
        far: FarTimers,
        ingest: IngestMark,
        pending: PendingTimers,
        lost_entries: Callable[[TimelineTail], LostEntries],
        root_uri: str,
    ) -> None:
        """`lost_entries` writes what was lost."""
        self._store = store
        self._far = far
        self._ingest = ingest
        self._pending = pending
        self._lost_entries = lost_entries
        self._root_uri = root_uri

    async def complete(self) -> None:
        """Compare the store with the timeline's claim, and write again the entries that an old backup lacks."""
        root_uri, store_id = self._root_uri, self._store.store_id
        first_lost = self._far.next_entry
        is_partly_recovered = self._ingest.repair_from is not None
        try:
            async with asyncio.timeout(_CLAIM_TIMEOUT_S):
                reading = DaemonThreads(1, "latermq-claim").submit(partial(_read_claim, root_uri, store_id))
                claim = await asyncio.wrap_future(reading)
        except (LaterMQError, OSError, ImportError, TimeoutError) as error:
            reason = error.message if isinstance(error, LaterMQError) else str(error) or "it took too long"
            if is_partly_recovered:
                raise _partly_recovered(root_uri, reason) from error
            _log.warning("cannot determine whether the timeline is ahead of this store", reason=reason)
            return
        if is_partly_recovered and claim is None:
            raise _partly_recovered(root_uri, "nothing is there")
        if claim is None or (claim.end <= first_lost and not is_partly_recovered):
            return
        _log.warning(
            "this store was restored from an old backup: "
            "timers in the timeline are written again, other new data is lost",
            ends_at_entry=first_lost,
            timeline_ends_at=claim.end,
        )
        rows = await asyncio.to_thread(self._recover, claim, first_lost)
        _log.warning("the restored store continues", entries=max(0, claim.end - first_lost), of_them_known=rows)

    def _recover(self, claim: IngestClaim, first_lost: int) -> int:
        """Write the lost entries again and return their number. Errors are raised: without them, timers are lost."""
        try:
            from latermq.pipeline.timeline.lookup import find_records
            from latermq.pipeline.timeline.lost_entries import read_extent, rows_from
        except ImportError as error:
            raise ConfigError(
                f"the timeline cannot be read: {error.name} is missing", hint="Install latermq[pipeline]"
            ) from error

        root_uri, store_id = self._root_uri, self._store.store_id
        held = read_extent(root_uri, store_id, first_lost)
        lost = TimelineTail(
            claim.end, claim.epoch, held.ingested, held.far_from_ms, held.far_until_ms, held.newest_window
        )
        entries = self._lost_entries(lost)
        began_at = self._ingest.begin_repair(first_lost)
        count = entries.write(_lost_row(row) for row in rows_from(root_uri, store_id, began_at))
        for move in entries.moves.values():
            places = self._pending.records_to_fetch(move.topic, move.unique_key, "")
            fetched = find_records(root_uri, store_id, places) if places else {}
            self._pending.move(move.topic, move.unique_key, move.due_ms, fetched)
        self._store.flush()
        self._ingest.end_repair()
        return count


def _partly_recovered(root_uri: str, reason: str) -> ConfigError:
    return ConfigError(
        f"this store was restored from an old backup and only partly recovered from {root_uri}: {reason}",
        hint="Restart the broker when the pipeline's folder is readable",
    )


def _lost_row(row: dict[str, Any]) -> LostRow:
    texts = (row["topic"] or "", row["unique_key"] or "")
    return LostRow(row["entry_offset"], row["kind"], row["due_ms"], *texts, row["record"] or b"", row["takes"] or "")


def _read_claim(root_uri: str, store_id: str) -> IngestClaim | None:
    return read_claims(store_id, partial(list_names, root_uri, CLAIMS), partial(read_small_file, root_uri), root_uri)
