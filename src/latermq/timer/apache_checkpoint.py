"""RocketMQ's checkpoint of its timers, written beside ours for its tools (docs/formats/timer-checkpoint.md)."""

import struct
from typing import NamedTuple

from latermq.errors import CorruptStore

PATH = "config/timercheck"
FILE_BYTES = 4096
OWN_STATE = int.from_bytes(b"LaterMQ", "big")  # as the state version: this file is an export of our own checkpoint
_ALL = struct.Struct(">7q")
_WITHOUT_VERSION = struct.Struct(">4q")  # as brokers before the data version answer


class TimerCheckpoint(NamedTuple):
    """How far RocketMQ's timers are. Its data version, the last three, tells replicas whether to fetch it again."""

    last_read_ms: int = 0  # the slot to be read next: those before it are delivered
    log_flushed: int = 0  # how far the timer log is on disk
    queue_offset: int = 0  # entries of the timer topic below are in the timer log
    master_queue_offset: int = 0  # the same of the broker that takes the sends; the lower of both counts
    state_version: int = 0
    version_ms: int = 0
    version_counter: int = 0


def encode_timer_checkpoint(checkpoint: TimerCheckpoint) -> bytes:
    """The body that replicas are sent."""
    return _ALL.pack(*checkpoint)


def timer_checkpoint_file(checkpoint: TimerCheckpoint) -> bytes:
    """The whole file."""
    return encode_timer_checkpoint(checkpoint).ljust(FILE_BYTES, b"\0")


def decode_timer_checkpoint(data: bytes) -> TimerCheckpoint:
    """A body or a file; the data version may be missing."""
    if len(data) >= _ALL.size:
        return TimerCheckpoint(*_ALL.unpack_from(data))
    if len(data) == _WITHOUT_VERSION.size:
        return TimerCheckpoint(*_WITHOUT_VERSION.unpack(data))
    raise CorruptStore(
        f"{PATH} has {len(data)} bytes", hint=f"Remove {PATH}: timers are then read again from the whole timer topic"
    )
