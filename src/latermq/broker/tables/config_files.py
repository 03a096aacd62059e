"""RocketMQ's JSON files under config/: read at start, replaced when their table changed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct, field

from latermq.broker.tables.topics import MAX_QUEUES
from latermq.errors import MalformedRequest
from latermq.message.names import is_group, is_stored_topic
from latermq.protocol.json_members import is_closed, members
from latermq.protocol.remoting.groups import SubscriptionGroup, SubscriptionGroupTable
from latermq.protocol.remoting.json_body import decode_body
from latermq.protocol.remoting.numbers import Int32, Int64
from latermq.protocol.remoting.offsets import OffsetTable
from latermq.protocol.remoting.topics import DataVersion, TopicConfig, TopicConfigTable
from latermq.store.files.disk import Disk
from latermq.store.files.set_aside import NotUnderstoodError, Parsed, Trouble, load_file

TOPICS_PATH = "config/topics.json"
GROUPS_PATH = "config/subscriptionGroup.json"
OFFSETS_PATH = "config/consumerOffset.json"
DELAY_OFFSETS_PATH = "config/delayOffset.json"
UNUSED_PATH = "latermq.unused"


class DelayOffsetTable(Struct, kw_only=True):
    """delayOffset.json: for each level the queue offset below which everything was delivered."""

    offsetTable: dict[Int32, Int64] = field(default_factory=dict)
    dataVersion: DataVersion = field(default_factory=DataVersion)


class UnusedNames(Struct, kw_only=True):
    """latermq.unused: auto-created topics and groups that nobody has used."""

    topics: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)


Table = TypeVar("Table", TopicConfigTable, SubscriptionGroupTable, OffsetTable, DelayOffsetTable)


@dataclass(frozen=True)
class _Shape:
    """Which field of a table holds its entries, of which type they are, and what is wrong with one that has it.

    Without its `essential` fields an entry is of no use.
    """

    field: str
    entry: Any
    essential: frozenset[str] = frozenset()
    fault: Callable[[str, Any], str] = lambda name, entry: ""


def _topic_fault(name: str, topic: TopicConfig) -> str:
    if not is_stored_topic(name):
        return "no topic can have this name"
    if not (0 <= topic.readQueueNums <= MAX_QUEUES and 0 <= topic.writeQueueNums <= MAX_QUEUES):
        return f"it has {topic.readQueueNums} and {topic.writeQueueNums} queues"
    return "" if topic.topicName == name else f"its configuration is of another topic, {topic.topicName[:100]!r}"


def _group_fault(name: str, group: SubscriptionGroup) -> str:
    if not is_group(name):
        return "no group can have this name"
    return "" if group.groupName == name else f"its configuration is of another group, {group.groupName[:100]!r}"


# Messages in queues that a topic has no more could not be read; who may not consume should not begin to.
_TOPIC_FIELDS = frozenset({"topicName", "readQueueNums", "writeQueueNums"})
_GROUP_FIELDS = frozenset({"groupName", "consumeEnable"})
_OTHER_FIELDS: dict[str, Any] = {"dataVersion": DataVersion, "forbiddenTable": dict[str, dict[str, Int32]]}
_SHAPES: dict[type[Struct], _Shape] = {
    TopicConfigTable: _Shape("topicConfigTable", TopicConfig, _TOPIC_FIELDS, _topic_fault),
    SubscriptionGroupTable: _Shape("subscriptionGroupTable", SubscriptionGroup, _GROUP_FIELDS, _group_fault),
    OffsetTable: _Shape("offsetTable", dict[Int32, Int64]),
    DelayOffsetTable: _Shape("offsetTable", Int64),
}


def load_table(
    disk: Disk, path: str, type_: type[Table], empty: Callable[[], Table], troubles: list[Trouble] | None = None
) -> Table:
    """The table in a config file, an empty one where there is no file.

    What is not understood is set aside, and told in `troubles`.
    """
    field_name = _SHAPES[type_].field
    table, trouble = load_file(
        disk,
        path,
        lambda data: _parse(data, type_),
        lambda table: cast(dict[str, Any], getattr(table, field_name)),
        empty,
    )
    if trouble is not None and troubles is not None and trouble not in troubles:
        troubles.append(trouble)
    return table


def _parse(data: bytes, type_: type[Table]) -> Parsed[Table]:
    shape = _SHAPES[type_]
    try:
        parsed = Parsed(decode_body(data, type_))
    except MalformedRequest as error:
        parsed = _parse_entries(data, type_, shape, error.message)
    entries: dict[str, Any] = getattr(parsed.value, shape.field)
    for name in list(entries):
        if fault := shape.fault(name, entries[name]):
            del entries[name]
            parsed.lost[name] = fault
    return parsed


def _name(written: bytes, type_: type[Struct]) -> Any:
    return decode_body(b'"' + written + b'"', Int32 if type_ is DelayOffsetTable else str)


def _parse_entries(data: bytes, type_: type[Table], shape: _Shape, reason: str) -> Parsed[Table]:
    """A table entry by entry: one that is damaged costs itself and no other."""
    fields = {name.decode(errors="replace"): value for name, value in members(data)}
    if not fields.get(shape.field, b"").startswith(b"{"):
        raise NotUnderstoodError(reason)
    parsed = Parsed(type_())
    entries: dict[Any, Any] = getattr(parsed.value, shape.field)
    for written, value in members(fields[shape.field]):
        name: Any = written.decode(errors="replace")
        try:
            name = _name(written, type_)
            entries[name] = decode_body(value, shape.entry)
        except MalformedRequest as error:
            mended = _mended(value, shape)
            if mended is None:
                parsed.lost[name] = error.message
            else:
                entries[name] = mended
                parsed.mended[name] = error.message
    for other, type_of in _OTHER_FIELDS.items():
        if other in fields and hasattr(parsed.value, other):
            try:
                setattr(parsed.value, other, decode_body(fields[other], type_of))
            except MalformedRequest as error:
                parsed.mended[other] = error.message
    if not (parsed.lost or parsed.mended):
        parsed.mended["the file itself"] = reason  # it breaks off between two entries, say
    return parsed


def _mended(data: bytes, shape: _Shape) -> Any:
    """An entry without the fields of it that are not understood, which have their defaults then; None where it breaks
    off, or is of no use without them.

    Earlier releases took numbers of any length and JSON of any depth from clients.
    """
    if not is_closed(data):
        return None
    types: dict[bytes, Any] = {}
    if isinstance(shape.entry, type) and issubclass(shape.entry, Struct):
        types = {one.encode_name.encode(): one.type for one in msgspec.structs.fields(shape.entry)}
    kept = []
    for name, value in members(data):
        if name in types:
            try:
                decode_body(value, types[name])
            except MalformedRequest:
                if name.decode() in shape.essential:
                    return None
                continue
            kept.append(b'"%s":%s' % (name, value))
    try:
        return decode_body(b"{%s}" % b",".join(kept), shape.entry) if kept else None
    except MalformedRequest:
        return None


def load_unused(disk: Disk) -> UnusedNames:
    """The names that nobody has used; where the file is not understood none are, so that all of them stay."""
    try:
        return decode_body(disk.read(UNUSED_PATH) or b"{}", UnusedNames)
    except MalformedRequest:
        return UnusedNames()
