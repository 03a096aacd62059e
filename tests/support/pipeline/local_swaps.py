"""Rewrites of a timeline's files without a JVM: Spark's tasks run here, and delta-rs commits."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from latermq.pipeline.timeline.data_files import DataFile, data_files
from latermq.pipeline.timeline.rewrite_plan import DEFAULT_LIMITS
from latermq.pipeline.timeline.root import Root
from latermq.pipeline.timeline.sorted_files import Rewrite, WrittenFile, rewrite
from latermq.pipeline.timeline.table_sync import TableSync


class LocalSwaps:
    """Commits of rewrites. Keeps the first file that each of them adds."""

    def __init__(self, root: Root) -> None:
        self._table = DeltaTable(root.timeline)
        self.files = data_files(self._table)
        self.added: list[str] = []

    def commit(self, removed: Sequence[DataFile], written: Sequence[WrittenFile]) -> None:
        actions: list[AddAction | RemoveAction] = [RemoveAction(file.path, False, 1) for file in removed]
        actions += [AddAction(file.path, file.size_bytes, {}, 1, False, file.stats) for file in written]
        self._table.create_write_transaction(actions, "append", self._table.schema())
        self.added.append(written[0].path)


def rewrite_locally(
    root: Root, swaps: LocalSwaps, monkeypatch: pytest.MonkeyPatch, sync: TableSync | None = None
) -> Iterator[Sequence[DataFile]]:
    """Rewrite each file by itself."""
    from latermq.pipeline.timeline import clustering

    def run(_spark: object, _uri: str, task: Rewrite) -> list[WrittenFile]:
        return rewrite(root, task)

    monkeypatch.setattr(clustering, "_run", run)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1, setLocalProperty=lambda *_: None))
    commits: Any = swaps
    groups = [[file] for file in swaps.files]
    version = clustering.TableVersion(commits, swaps.files)
    return clustering.rewrite_each(
        spark, root, version, groups, limits=DEFAULT_LIMITS, fence=lambda: None, table_sync=sync
    )
