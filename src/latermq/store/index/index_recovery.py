"""Recovery of the key index: opened at its end in the checkpoint, or rebuilt from the log."""

from collections.abc import Mapping
from typing import Any

from latermq.store.checkpoint import Checkpoint
from latermq.store.commit_log import CommitLog
from latermq.store.dispatch import index_keys
from latermq.store.index.index_check import check_size, find_damage, find_foreign_damage
from latermq.store.index.key_index import KeyIndex
from latermq.store.participant import CheckpointParticipant, Loss, Part
from latermq.store.replayed_batch import ReplayedBatch


class IndexState(CheckpointParticipant):
    """The checkpoint fields that begin with `index`."""

    fields = ("index_file", "index_next_entry", "index_files", "index_file_bytes")

    def __init__(self, index: KeyIndex) -> None:
        self._index = index

    def adopt(self, log: CommitLog) -> str:
        """Open RocketMQ's index, or rebuild it if it is incomplete.

        In RocketMQ the index is optional and may be disabled. LaterMQ needs it to find timers.
        """
        index = self._index
        check_size(index, 0)
        damage = find_foreign_damage(index, log, log.end)
        if damage:
            index.clear()
            for batch in log.scan(log.start, log.end):
                topics = [name.decode() for name in batch.topics]
                index.put(index_keys(topics, batch.properties, batch.offsets, batch.store_timestamps_ms))
        return f"index: {damage}" if damage else ""

    def restore(self, checkpoint: Checkpoint | None, log: CommitLog) -> Loss | None:
        index = self._index
        if checkpoint is None:
            index.clear()
            return None
        check_size(index, checkpoint.index_file_bytes)
        mark = (checkpoint.index_file, checkpoint.index_next_entry)
        if checkpoint.unfinished is not None and checkpoint.unfinished.index:
            return _LostIndex(index, "an earlier rebuild did not complete")
        damage = find_damage(index, log, checkpoint.index_files, mark, checkpoint.log_offset)
        if damage:
            return _LostIndex(index, damage)
        index.restore(mark, max(log.start, checkpoint.log_offset))
        return None

    def replay(self, batch: ReplayedBatch) -> None:
        self._index.put(batch.keys)

    def plan(self) -> Part:
        file, next_entry = self._index.mark
        fields = {
            "index_file": file,
            "index_next_entry": next_entry,
            "index_files": [one.name for one in self._index.files],
            "index_file_bytes": self._index.file_bytes,
        }
        return Part(fields, self._index.sync)


class _LostIndex(Loss):
    unfinished: Mapping[str, Any] = {"index": True}

    def __init__(self, index: KeyIndex, damage: str) -> None:
        self._index = index
        self.names = (f"index: {damage}",)

    def clear(self) -> None:
        self._index.clear()

    def rebuild(self, batch: ReplayedBatch) -> None:
        self._index.put(batch.keys)
