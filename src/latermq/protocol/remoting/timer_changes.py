"""The body of CHANGE_TIMERS and of its response: many names to cancel or move, in columns as in SCHEDULE_ROWS."""

import struct

import msgspec
import numpy as np

from latermq.config_json.numbers import Int32
from latermq.errors import MalformedRequest
from latermq.model.rows import Column
from latermq.model.timer_changes import ChangeOutcomes, TimerChanges
from latermq.model.timers import Verdict
from latermq.protocol.remoting.json_body import decode_body
from latermq.protocol.remoting.rows import MAX_TOPICS, ColumnReader, encode_column

MAGIC = b"LMC1"
MAX_CHANGES = 4_096  # per request: they run in slices, so this bounds the memory of a request, not a pause
MAX_IDS = 65_536  # timer ids of all names per request
CHANGES_AT_ONCE = 2_000  # recommended for senders

# What a response says of a name, by number. The last two are no verdicts of a single request.
REFUSED, ALONE = "refused", "alone"
VERDICTS = (
    Verdict.CANCELLED, Verdict.MOVED, Verdict.DELIVERED, Verdict.NOT_FOUND, Verdict.REPLACED, REFUSED, ALONE,
)  # fmt: skip

_HEAD = struct.Struct("<4sIII")  # magic, names, topics, timer ids


class _Outcomes(msgspec.Struct):
    """The body of a response."""

    verdicts: list[Int32]
    problems: dict[str, str] = {}


def encode_changes(changes: TimerChanges) -> bytes:
    """Encode changes as a request body."""
    pieces = [_HEAD.pack(MAGIC, len(changes), len(changes.topics), len(changes.ids))]
    pieces += encode_column(Column.of(topic.encode() for topic in changes.topics))
    pieces.append(changes.topic_of.astype("<u2").tobytes())
    pieces += encode_column(changes.unique_keys)
    pieces += (changes.due_ms.astype("<i8").tobytes(), changes.seen_before.astype("<i8").tobytes())
    pieces += (changes.id_offsets.astype("<u4").tobytes(), changes.ids.astype("<i8").tobytes())
    return b"".join(pieces)


def decode_changes(body: bytes) -> TimerChanges:
    """Decode the changes in a request body; raises MalformedRequest if it is not valid."""
    if len(body) < _HEAD.size:
        raise MalformedRequest(f"a batch of changes cannot have {len(body)} bytes")
    magic, count, topics, ids = _HEAD.unpack_from(body)
    if magic != MAGIC:
        raise MalformedRequest(f"the body starts with {magic!r} instead of {MAGIC!r}")
    if count > MAX_CHANGES or topics > MAX_TOPICS or ids > MAX_IDS:
        raise MalformedRequest(
            f"{count} names in {topics} topics with {ids} timer ids are too many; the limits are {MAX_CHANGES}, "
            f"{MAX_TOPICS} and {MAX_IDS}",
            hint="Send several smaller requests",
        )
    reader = ColumnReader(body, _HEAD.size)
    names = reader.texts(topics)
    topic_of = reader.numbers("<u2", count).astype(np.uint16)
    unique_keys = reader.column(count)
    due_ms, seen_before = (reader.numbers("<i8", count).astype(np.int64) for _ in range(2))
    id_offsets = reader.numbers("<u4", count + 1).astype(np.int64)
    timer_ids = reader.numbers("<i8", ids).astype(np.int64)
    reader.check_end()
    if count and int(topic_of.max()) >= topics:
        raise MalformedRequest(f"row {int(topic_of.argmax())} refers to topic {int(topic_of.max())} of {topics}")
    if id_offsets[0] or id_offsets[-1] != ids or (np.diff(id_offsets) < 1).any():
        raise MalformedRequest("each name must list the timers that it stands for")
    if (unique_keys.sizes == 0).any() or not _is_text(unique_keys):
        raise MalformedRequest("a unique key is empty or not UTF-8")
    return TimerChanges(names, topic_of, unique_keys, due_ms, seen_before, id_offsets, timer_ids)


def _is_text(column: Column) -> bool:
    if column.data.isascii():
        return True
    try:
        for value in column.values():
            value.decode()
    except UnicodeDecodeError:
        return False
    return True


def encode_change_outcomes(outcomes: ChangeOutcomes) -> bytes:
    """Encode the body of a response."""
    problems = {str(row): text for row, text in outcomes.problems.items()}
    return msgspec.json.encode(_Outcomes(outcomes.verdicts, problems))


def decode_change_outcomes(body: bytes) -> ChangeOutcomes:
    """Decode the body of a response."""
    found = decode_body(body, _Outcomes)
    return ChangeOutcomes(found.verdicts, {int(row): text for row, text in found.problems.items()})
