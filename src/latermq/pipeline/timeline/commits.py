"""What changed the timeline lately: its commits, read without a JVM."""

from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from latermq.pipeline.timeline.delta_reads import delta_reads
from latermq.pipeline.timeline.far_reads import COMPACTION, INGEST, TimelineCommit
from latermq.pipeline.timeline.root import open_root

_KINDS = {"WRITE": INGEST, "STREAMING UPDATE": INGEST, "OPTIMIZE": COMPACTION}


def last_commits(root_uri: str, limit: int) -> list[TimelineCommit]:
    """Return the latest commits, the last one first. None if there is no timeline yet."""
    root = open_root(root_uri)
    with delta_reads(root, root.timeline):
        try:
            table = DeltaTable(root.timeline, storage_options=root.delta_options)
        except TableNotFoundError:
            return []
        return [_commit(commit) for commit in table.history(limit)]


def _commit(commit: dict[str, Any]) -> TimelineCommit:
    operation = str(commit.get("operation", "change"))
    metrics = commit.get("operationMetrics") or {}
    return TimelineCommit(
        _KINDS.get(operation, operation.lower()),
        int(commit.get("timestamp", 0)),
        int(commit["version"]),
        _number(metrics, "numOutputRows", "num_added_rows"),
        _number(metrics, "numFiles", "numAddedFiles", "numFilesAdded", "num_added_files"),
        _number(metrics, "numRemovedFiles", "numFilesRemoved", "num_removed_files"),
        _number(metrics, "executionTimeMs", "execution_time_ms"),
    )


def _number(metrics: dict[str, Any], *names: str) -> int | None:
    """Return the first metric that is given. Spark writes numbers as text."""
    for name in names:
        text = str(metrics.get(name, ""))
        if text.isascii() and text.isdigit() and len(text) < 20:
            return int(text)
    return None
