"""The store's checkpoint: one small file, replaced atomically, that is the state at log position F."""

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
    """How far the timers are at `log_offset`; the entries delivered beyond these marks are those of level 0."""

    engine: str  # which kind keeps them,
    mark: str  # and up to where it is written
    put_upto: int  # P: every entry of the timer topic below it is in the engine, delivered or cancelled
    wake_ms: int  # T: no undelivered entry below P wakes before it
    # Entries below the one that wake before the other are done: P and T, but while an engine is filled again.
    done_upto: int
    done_wake_ms: int
    # The broker's own timers, among these entries, are done even if they wake before this; 0 in older files.
    near_done_wake_ms: int = 0
    # Spark's timers are done that are due within these times, [from, until): of windows behind one that is missing.
    far_done: list[tuple[int, int]] = []
    pending: dict[str, int] = {}  # how many timers wait for each topic
    cuts: list[Cut] = []  # the last one, and those that have a window
    # From which entry on which frontier holds, for all of the timer topic that is in the log; none in older files.
    frontiers: list[tuple[int, int]] = []
    far_until_ms: int = 0  # no timer of Spark's is due later


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """What a start found to be lost and builds again from the log: files of it are there and may be half written."""

    queues: dict[str, list[int]] = {}
    index: bool = False


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Everything below `log_offset` is synced: the log, the queues' entries for it and the index up to its mark."""

    log_offset: int
    index_file: str
    index_next_entry: int
    store_timestamp_ms: int
    index_files: list[str] | None = None  # all of them, oldest first, and how long each is
    index_file_bytes: int = 0
    # For each level the entries that are delivered: [start, end) ranges of queue offsets, the first one from the start.
    delivered: dict[int, list[tuple[int, int]]] = {}
    # How long each queue is: topic → queue id → next offset. A queue that is not named here has nothing below.
    queue_ends: dict[str, dict[int, int]] = {}
    # Where the files of a queue begin: topic → queue id → first offset. What is not named here begins at 0.
    queue_starts: dict[str, dict[int, int]] = {}
    timers: TimerMarks | None = None
    unfinished: Unfinished | None = None
    version: int = VERSION
    # Fields of participants that are not named above. In the file they follow these, each under its own name.
    more: dict[str, Any] = {}


KNOWN_FIELDS = frozenset(Checkpoint.__struct_fields__)


def save_checkpoint(disk: Disk, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint, and RocketMQ's own beside it, which tells its tools how far the store is synced."""
    fields = {name: getattr(checkpoint, name) for name in Checkpoint.__struct_fields__}
    fields |= fields.pop("more")
    disk.replace(PATH, encode_checked(fields))
    timestamp_ms = checkpoint.store_timestamp_ms
    disk.replace(APACHE_PATH, _APACHE.pack(timestamp_ms, timestamp_ms, timestamp_ms).ljust(APACHE_BYTES, b"\0"))


def load_checkpoint(disk: Disk) -> Checkpoint | None:
    """The last checkpoint, None in a directory that never had one."""
    data = disk.read(PATH)
    if data is None:
        return None
    checkpoint = decode_checked(data, Checkpoint, PATH, f"Remove {PATH}: the store is then rebuilt from the whole log")
    if checkpoint.version != VERSION:
        raise CorruptStore(f"{PATH} has version {checkpoint.version}, this broker writes {VERSION}")
    fields = decode_checked(data, dict[str, msgspec.Raw], PATH, "")
    return msgspec.structs.replace(
        checkpoint, more={name: value for name, value in fields.items() if name not in KNOWN_FIELDS}
    )
