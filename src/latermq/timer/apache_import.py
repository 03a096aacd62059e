"""Import of Apache RocketMQ's timers: finds the pending ones in its timer log and its timer checkpoint.

RocketMQ does not record in the log what it delivered or rolled, so its timer topic alone would deliver everything
again. LaterMQ saves what RocketMQ's files say in a small file of its own, which survives the loss of the checkpoint.
Then LaterMQ's own engine replaces RocketMQ's files.
"""

import msgspec
import numpy as np

from latermq.errors import CorruptStore
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import REAL_TOPIC, TIMER_DELETE_KEY, UNIQUE_KEY
from latermq.message.timer_code import CANCEL, TIMER, kind_and_due
from latermq.message.timer_name import meanings, timer_name
from latermq.store.files.disk import Disk
from latermq.store.log_reader import LogReader
from latermq.store.ranges import RangeSet
from latermq.timer import apache_checkpoint
from latermq.timer.apache_checkpoint import OWN_STATE, TimerCheckpoint, decode_timer_checkpoint, timer_checkpoint_file
from latermq.timer.engine import timer_log
from latermq.timer.engine.timer_log import DELETE, TimerLog, is_unit

PATH = "latermq.importedtimers"  # entries of the timer topic settled before the first start, as ranges


def entries_settled_by_apache(disk: Disk, reader: LogReader) -> RangeSet:
    """Return the entries of the timer topic that RocketMQ delivered, rolled or cancelled.

    They are found once, then saved.
    """
    kept = imported_entries(disk)
    if kept is not None:
        return kept
    data = disk.read(apache_checkpoint.PATH)
    if data is None or (checkpoint := decode_timer_checkpoint(data)).state_version == OWN_STATE:
        return RangeSet()
    settled = _settled(disk, reader, checkpoint)
    disk.replace(PATH, msgspec.json.encode(settled.ranges()))
    disk.replace(apache_checkpoint.PATH, timer_checkpoint_file(checkpoint._replace(state_version=OWN_STATE)))
    return settled


def imported_entries(disk: Disk) -> RangeSet | None:
    """Return what an earlier start saved; None if it saved nothing.

    A file that does not parse is not set aside: everything that RocketMQ delivered would be delivered again.
    """
    kept = disk.read(PATH)
    if kept is None:
        return None
    try:
        return RangeSet(msgspec.json.decode(kept, type=list[tuple[int, int]]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptStore(
            f"{PATH} does not parse: {error}",
            hint="Restore it from a backup. Without it, timers that RocketMQ delivered are delivered again",
        ) from None


def _settled(disk: Disk, reader: LogReader, checkpoint: TimerCheckpoint) -> RangeSet:
    queue = reader.queues.find(TIMER_TOPIC, 0)
    settled = RangeSet()
    if queue is None:
        return settled
    upto = min(checkpoint.queue_offset, queue.next_offset)
    start = 0
    for entry in sorted(_waiting(disk, reader, checkpoint)):
        if entry < upto:
            settled.add(start, entry)
            start = entry + 1
    settled.add(start, upto)
    return settled


def _not_due(reader: LogReader, checkpoint: TimerCheckpoint) -> set[int]:
    """Without a timer log: all entries not due when RocketMQ stopped. A timer that it rolled may be delivered twice."""
    queue = reader.queues.ensure(TIMER_TOPIC, 0)
    waiting = set()
    for entry in range(queue.min_offset, queue.next_offset):
        place = queue.entry(entry)
        kind, due_ms = kind_and_due(reader.waiting_code_at(place[0])) if place else (CANCEL, 0)
        if kind == TIMER and due_ms > checkpoint.last_read_ms:
            waiting.add(entry)
    return waiting


def _waiting(disk: Disk, reader: LogReader, checkpoint: TimerCheckpoint) -> set[int]:
    """Return the entries that RocketMQ's timer log holds for slots that it has not read."""
    names = disk.list_names(timer_log.FOLDER)
    log = TimerLog(disk, file_bytes=disk.file_size(f"{timer_log.FOLDER}/{names[0]}")) if names else None
    if log is None or not log.open_at(checkpoint.log_flushed):
        return _not_due(reader, checkpoint)
    waiting: dict[tuple[int, str], set[int]] = {}  # by slot and name, as RocketMQ's cancels match them
    cancelled: list[tuple[int, str]] = []
    for _, units in log.chunks(4096):
        units = units[is_unit(units)]
        slots = units["write_ms"].astype(np.int64) + units["delay_ms"]
        for row in np.flatnonzero(slots >= checkpoint.last_read_ms).tolist():
            message = reader.read_message(int(units["offset"][row]))
            if message is None or message.topic != TIMER_TOPIC:
                continue
            properties = message.properties
            if units["magic"][row] & DELETE:
                names = meanings(properties.get(TIMER_DELETE_KEY, ""), properties.get(REAL_TOPIC, ""))
                cancelled += [(int(slots[row]), name) for name in names]
                continue
            name = timer_name(properties.get(REAL_TOPIC, ""), properties.get(UNIQUE_KEY, ""))
            waiting.setdefault((int(slots[row]), name), set()).add(message.queue_offset)
    log.close()
    for key in cancelled:
        waiting.pop(key, None)
    return set().union(*waiting.values())
