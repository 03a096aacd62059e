"""The store's checkpoint: one small file, replaced atomically, with the state at log position F."""

import struct
from typing import Any

import msgspec

from latermq.errors import CorruptStore
from latermq.handover.checked_file import decode_checked, encode_checked
from latermq.handover.cut import Cut
from latermq.store.files.disk import Disk

PATH = "latermq.checkpoint"
APACHE_PATH = "checkpoint"
APACHE_BYTES = 4096
_APACHE = struct.Struct(">qqq")  # store times up to which log, queues and index are synced
VERSION = 1


class TimerMarks(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the timers at `log_offset`. Entries delivered beyond these marks are in `delivered` under level 0."""

    engine: str  # the kind of engine that keeps the timers
    mark: str  # how far the engine has written
    put_upto: int  # P: every entry of the timer topic below it is in the engine, delivered or cancelled
    wake_ms: int  # T: no undelivered entry below P wakes before this time
    # Entries below `done_upto` that wake before `done_wake_ms` are done. These are P and T, except while an engine is
    # being refilled.
    done_upto: int
    done_wake_ms: int
    # Among these entries, the broker's own timers that wake before this time are done too; 0 in older files.
    near_done_wake_ms: int = 0
    # Spark's timers due in these ranges [from, until) are done. They come from windows after a missing one.
    far_done: list[tuple[int, int]] = []
    pending: dict[str, int] = {}  # number of pending timers per topic
    cuts: list[Cut] = []  # the last cut, and those that have a window
    # Pairs of an entry and the frontier that applies from it on, for all entries of the timer topic in the log. Empty
    # in older files.
    frontiers: list[tuple[int, int]] = []
    far_until_ms: int = 0  # no timer of Spark is due later


class UnfinishedRebuild(msgspec.Struct, frozen=True, kw_only=True):
    """Lost data that a start rebuilds from the log. Its files exist and may be partially written."""

    queues: dict[str, list[int]] = {}
    index: bool = False


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint: everything below `log_offset` is synced.

    This covers the log, its queue entries, and the index up to its mark.
    """

    log_offset: int
    index_file: str
    index_next_entry: int
    store_timestamp_ms: int
    index_files: list[str] | None = None  # all files, oldest first; `index_file_bytes` is the size of each
    index_file_bytes: int = 0
    # The delivered entries of each level: [start, end) ranges of queue offsets. The first range begins at the start.
    delivered: dict[int, list[tuple[int, int]]] = {}
    # The length of each queue: topic → queue id → next offset. A queue that is not listed has no entries below
    # `log_offset`.
    queue_ends: dict[str, dict[int, int]] = {}
    # The start of each queue's files: topic → queue id → first offset. A queue that is not listed begins at 0.
    queue_starts: dict[str, dict[int, int]] = {}
    timers: TimerMarks | None = None
    unfinished: UnfinishedRebuild | None = None
    version: int = VERSION
    # Fields of participants that are not listed above. In the file they follow the others, each under its own name.
    more: dict[str, Any] = {}


KNOWN_FIELDS = frozenset(Checkpoint.__struct_fields__)


def save_checkpoint(disk: Disk, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint and RocketMQ's own, which shows RocketMQ's tools how far the store is synced."""
    fields = {name: getattr(checkpoint, name) for name in Checkpoint.__struct_fields__}
    fields |= fields.pop("more")
    disk.replace(PATH, encode_checked(fields))
    timestamp_ms = checkpoint.store_timestamp_ms
    disk.replace(APACHE_PATH, _APACHE.pack(timestamp_ms, timestamp_ms, timestamp_ms).ljust(APACHE_BYTES, b"\0"))


def load_checkpoint(disk: Disk) -> Checkpoint | None:
    """Return the last checkpoint, or None if the directory never had one."""
    data = disk.read(PATH)
    if data is None:
        return None
    checkpoint = decode_checked(data, Checkpoint, PATH, f"Remove {PATH}: the store is then rebuilt from the whole log")
    if checkpoint.version != VERSION:
        raise CorruptStore(f"{PATH} has version {checkpoint.version}; this broker supports version {VERSION}")
    fields = decode_checked(data, dict[str, msgspec.Raw], PATH, "")
    return msgspec.structs.replace(
        checkpoint, more={name: value for name, value in fields.items() if name not in KNOWN_FIELDS}
    )
