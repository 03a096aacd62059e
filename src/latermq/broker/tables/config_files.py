"""RocketMQ's JSON files under config/: read at the start, replaced when their table changes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct, field

from latermq.broker.tables.topics import MAX_QUEUES
from latermq.config_json.groups import GroupJson, GroupTableJson
from latermq.config_json.java_json import UnreadableJson, convert, decode_json
from latermq.config_json.members import is_closed, members
from latermq.config_json.numbers import Int32, Int64
from latermq.config_json.offsets import DelayOffsetTableJson, OffsetTableJson
from latermq.config_json.request_modes import RequestModeJson, RequestModeTableJson
from latermq.config_json.topics import TopicJson, TopicTableJson
from latermq.message.names import is_group, is_stored_topic
from latermq.model.group import GroupTable
from latermq.model.offset_table import DelayOffsetTable, OffsetTable
from latermq.model.request_mode import RequestModeTable
from latermq.model.topic import TopicTable
from latermq.store.files.disk import Disk
from latermq.store.files.set_aside import Parsed, Trouble, UnparsableFileError, load_file

TOPICS_PATH = "config/topics.json"
GROUPS_PATH = "config/subscriptionGroup.json"
OFFSETS_PATH = "config/consumerOffset.json"
DELAY_OFFSETS_PATH = "config/delayOffset.json"
REQUEST_MODES_PATH = "config/messageRequestMode.json"
UNUSED_PATH = "latermq.unused"


class UnusedNames(Struct, kw_only=True):
    """latermq.unused: unused auto-created topics and groups."""

    topics: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)


Table = TypeVar("Table", TopicTable, GroupTable, OffsetTable, DelayOffsetTable, RequestModeTable)


@dataclass(frozen=True)
class _Shape:
    """The JSON of a table: the attribute with the entries, their types, and the check of an entry.

    An entry without its `essential` fields is discarded.
    """

    table: type[Struct]
    entries: str
    key: Any
    entry: Any
    essential: frozenset[str] = frozenset()
    fault: Callable[[str, Any], str] = lambda name, entry: ""


def _topic_fault(name: str, topic: TopicJson) -> str:
    if not is_stored_topic(name):
        return "the topic name is not valid"
    if not (0 <= topic.read_queues <= MAX_QUEUES and 0 <= topic.write_queues <= MAX_QUEUES):
        return f"its numbers of queues, {topic.read_queues} and {topic.write_queues}, are not valid"
    return "" if topic.name == name else f"its configuration belongs to another topic, {topic.name[:100]!r}"


def _group_fault(name: str, group: GroupJson) -> str:
    if not is_group(name):
        return "the group name is not valid"
    return "" if group.name == name else f"its configuration belongs to another group, {group.name[:100]!r}"


def _modes_fault(topic: str, groups: dict[str, RequestModeJson]) -> str:
    if not is_stored_topic(topic):
        return "the topic name is not valid"
    for name, mode in groups.items():
        if (mode.topic, mode.group) != (topic, name) or not is_group(name):
            return f"one of its modes belongs to {mode.topic[:100]!r} and group {mode.group[:100]!r}"
    return ""


# Without its queues, a topic's messages could not be read. A group that must not consume must not start to.
_TOPIC_FIELDS = frozenset({"name", "read_queues", "write_queues"})
_GROUP_FIELDS = frozenset({"name", "can_consume"})
_SHAPES: dict[type[Struct], _Shape] = {
    TopicTable: _Shape(TopicTableJson, "topics", str, TopicJson, _TOPIC_FIELDS, _topic_fault),
    GroupTable: _Shape(GroupTableJson, "groups", str, GroupJson, _GROUP_FIELDS, _group_fault),
    OffsetTable: _Shape(OffsetTableJson, "offsets", str, dict[Int32, Int64]),
    DelayOffsetTable: _Shape(DelayOffsetTableJson, "offsets", Int32, Int64),
    RequestModeTable: _Shape(RequestModeTableJson, "modes", str, dict[str, RequestModeJson], fault=_modes_fault),
}


def load_table(disk: Disk, path: str, type_: type[Table], troubles: list[Trouble] | None = None) -> Table:
    """The table in a config file. It is empty if there is no file.

    Content that cannot be parsed is set aside and reported in `troubles`.
    """
    shape = _SHAPES[type_]
    table, trouble = load_file(
        disk,
        path,
        lambda data: _parse(data, shape),
        lambda table: cast(dict[str, Any], getattr(table, shape.entries)),
        shape.table,
    )
    if trouble is not None and troubles is not None and trouble not in troubles:
        troubles.append(trouble)
    return convert(table, type_)


def _parse(data: bytes, shape: _Shape) -> Parsed[Struct]:
    try:
        parsed = Parsed(decode_json(data, shape.table))
    except UnreadableJson as error:
        parsed = _parse_entries(data, shape, str(error))
    entries: dict[str, Any] = getattr(parsed.value, shape.entries)
    for name in list(entries):
        if fault := shape.fault(name, entries[name]):
            del entries[name]
            parsed.lost[name] = fault
    return parsed


def _parse_entries(data: bytes, shape: _Shape, reason: str) -> Parsed[Struct]:
    """Parse a table entry by entry, so that a damaged entry does not affect the others."""
    written = {name.decode(errors="replace"): value for name, value in members(data)}
    parsed = Parsed(shape.table())
    for field_info in msgspec.structs.fields(shape.table):
        name, value = field_info.encode_name, written.get(field_info.encode_name)
        if field_info.name == shape.entries:
            if value is None or not value.startswith(b"{"):
                raise UnparsableFileError(reason)
            setattr(parsed.value, shape.entries, _entries(value, shape, parsed))
        elif value is not None:
            try:
                setattr(parsed.value, field_info.name, decode_json(value, field_info.type))
            except UnreadableJson as error:
                parsed.repaired[name] = str(error)
    if not (parsed.lost or parsed.repaired):
        parsed.repaired["the file itself"] = reason  # for example, it is truncated between two entries
    return parsed


def _entries(data: bytes, shape: _Shape, parsed: Parsed[Struct]) -> dict[Any, Any]:
    entries: dict[Any, Any] = {}
    for written, value in members(data):
        name: Any = written.decode(errors="replace")
        try:
            name = decode_json(b'"' + written + b'"', shape.key)
            entries[name] = decode_json(value, shape.entry)
        except UnreadableJson as error:
            repaired = _repaired(value, shape)
            if repaired is None:
                parsed.lost[name] = str(error)
            else:
                entries[name] = repaired
                parsed.repaired[name] = str(error)
    return entries


def _repaired(data: bytes, shape: _Shape) -> Any:
    """Parse an entry without its unreadable fields, which get their defaults.

    Returns None if it is truncated or lacks an essential field. Earlier versions accepted numbers of any length and
    JSON of any depth from clients.
    """
    if not is_closed(data):
        return None
    fields: dict[bytes, msgspec.structs.FieldInfo] = {}
    if isinstance(shape.entry, type) and issubclass(shape.entry, Struct):
        fields = {one.encode_name.encode(): one for one in msgspec.structs.fields(shape.entry)}
    readable = []
    for name, value in members(data):
        if name in fields:
            try:
                decode_json(value, fields[name].type)
            except UnreadableJson:
                if fields[name].name in shape.essential:
                    return None
                continue
            readable.append(b'"%s":%s' % (name, value))
    try:
        return decode_json(b"{%s}" % b",".join(readable), shape.entry) if readable else None
    except UnreadableJson:
        return None


def load_unused(disk: Disk) -> UnusedNames:
    """The unused names. If the file cannot be parsed there are none, so that all topics and groups stay."""
    try:
        return decode_json(disk.read(UNUSED_PATH) or b"{}", UnusedNames)
    except UnreadableJson:
        return UnusedNames()
