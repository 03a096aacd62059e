"""RocketMQ's timer checkpoint, written alongside LaterMQ's for RocketMQ's tools (docs/formats/timer-checkpoint.md)."""

import struct
from typing import NamedTuple

from latermq.errors import CorruptStore

PATH = "config/timercheck"
FILE_BYTES = 4096
OWN_STATE = int.from_bytes(b"LaterMQ", "big")  # state version of an export of LaterMQ's own checkpoint
_ALL = struct.Struct(">7q")
_WITHOUT_VERSION = struct.Struct(">4q")  # answer of brokers older than the data version


class TimerCheckpoint(NamedTuple):
    """The progress of RocketMQ's timers.

    From the data version (last three fields) replicas see whether to fetch it again.
    """

    last_read_ms: int = 0  # the next slot to read; earlier slots are delivered
    log_flushed: int = 0  # how far the timer log is on disk
    queue_offset: int = 0  # entries of the timer topic below this are in the timer log
    master_queue_offset: int = 0  # the same on the master; the lower of the two counts
    state_version: int = 0
    version_ms: int = 0
    version_counter: int = 0


def encode_timer_checkpoint(checkpoint: TimerCheckpoint) -> bytes:
    """Return the body that is sent to replicas."""
    return _ALL.pack(*checkpoint)


def timer_checkpoint_file(checkpoint: TimerCheckpoint) -> bytes:
    """Return the whole file."""
    return encode_timer_checkpoint(checkpoint).ljust(FILE_BYTES, b"\0")


def decode_timer_checkpoint(data: bytes) -> TimerCheckpoint:
    """Decode a body or a file; the data version may be missing."""
    if len(data) >= _ALL.size:
        return TimerCheckpoint(*_ALL.unpack_from(data))
    if len(data) == _WITHOUT_VERSION.size:
        return TimerCheckpoint(*_WITHOUT_VERSION.unpack(data))
    raise CorruptStore(
        f"{PATH} has {len(data)} bytes", hint=f"Remove {PATH}: timers are then read again from the whole timer topic"
    )
