"""How long queues were, as far as anything but the checkpoint and their own files tells.

Without a checkpoint queues are built again from the log. One whose records have all left it would begin at 0 again, and
what comes next would be taken for what was delivered or consumed under the same number. Each of the files here names
offsets of entries that are done with, so a queue was at least that long.
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
    """For queues the offset that their next message has at least."""
    ends = {(TIMER_TOPIC, 0): max(_timers_end(disk), ingest.offset, far_names.upto)}
    delays = load_table(disk, DELAY_OFFSETS_PATH, DelayOffsetTable, troubles)
    ends |= {
        (SCHEDULE_TOPIC, level - 1): offset for level, offset in delays.offsets.items() if 1 <= level <= MAX_LEVELS
    }
    for topic, queue_id, offset in offsets.all():
        # Offsets in a topic that is being deleted may outlive it by a moment, and must not bring it back.
        if topics.find(topic) is not None:
            ends[topic, queue_id] = max(ends.get((topic, queue_id), 0), offset)
    return ends


def delivered_until_ms(disk: Disk) -> int:
    """What was due before was delivered or cancelled, as far as our export of the timers' marks tells."""
    data = disk.read(apache_checkpoint.PATH)
    if data is None:
        return 0
    checkpoint = apache_checkpoint.decode_timer_checkpoint(data)
    return checkpoint.last_read_ms if checkpoint.state_version == apache_checkpoint.OWN_STATE else 0


def _timers_end(disk: Disk) -> int:
    """What RocketMQ's timer checkpoint says, or our export of ours, and what it left to us."""
    data = disk.read(apache_checkpoint.PATH)
    end = apache_checkpoint.decode_timer_checkpoint(data).queue_offset if data is not None else 0
    done = apache_import.imported_entries(disk)
    return max(end, done.end) if done is not None else end
