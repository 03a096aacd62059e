"""The minimum lengths of queues, from sources other than the checkpoint and the queues' own files.

Without a checkpoint, queues are rebuilt from the log. A queue whose records have all left the log would begin at 0
again, and its new messages would be mistaken for messages that were delivered or consumed under the same offsets. Each
of these files contains offsets of finished entries, so a queue was at least that long.
"""

from latermq.broker.tables.config_files import DELAY_OFFSETS_PATH, load_table
from latermq.broker.tables.topics import Topics
from latermq.broker.timers.ingest_mark import IngestMark
from latermq.group.offsets import ConsumerOffsets
from latermq.message.entry_id import MAX_LEVELS
from latermq.message.names import SCHEDULE_TOPIC, TIMER_TOPIC
from latermq.model.offset_table import DelayOffsetTable
from latermq.store.files.disk import Disk
from latermq.store.files.set_aside import Trouble
from latermq.timer import apache_checkpoint, apache_import
from latermq.timer.far.far_names import FarNames


def known_ends(
    disk: Disk,
    topics: Topics,
    offsets: ConsumerOffsets,
    ingest: IngestMark,
    far_names: FarNames,
    troubles: list[Trouble] | None = None,
) -> dict[tuple[str, int], int]:
    """The minimum offset of the next message, by queue."""
    ends = {(TIMER_TOPIC, 0): max(_timers_end(disk), ingest.offset, far_names.upto)}
    delays = load_table(disk, DELAY_OFFSETS_PATH, DelayOffsetTable, troubles)
    ends |= {
        (SCHEDULE_TOPIC, level - 1): offset for level, offset in delays.offsets.items() if 1 <= level <= MAX_LEVELS
    }
    for topic, queue_id, offset in offsets.all():
        # Offsets in a deleted topic may outlive it for a short time, and must not restore it.
        if topics.find(topic) is not None:
            ends[topic, queue_id] = max(ends.get((topic, queue_id), 0), offset)
    return ends


def delivered_until_ms(disk: Disk) -> int:
    """Everything due before this time was delivered or cancelled, according to our export of the timers' marks."""
    data = disk.read(apache_checkpoint.PATH)
    if data is None:
        return 0
    checkpoint = apache_checkpoint.decode_timer_checkpoint(data)
    return checkpoint.last_read_ms if checkpoint.state_version == apache_checkpoint.OWN_STATE else 0


def _timers_end(disk: Disk) -> int:
    """The end according to RocketMQ's timer checkpoint, or our export of it, and to the imported entries."""
    data = disk.read(apache_checkpoint.PATH)
    end = apache_checkpoint.decode_timer_checkpoint(data).queue_offset if data is not None else 0
    done = apache_import.imported_entries(disk)
    return max(end, done.end) if done is not None else end
