"""RocketMQ's JSON files under config/: read at start, replaced when their table changed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import Struct, field

from latermq.broker.topics import MAX_QUEUES
from latermq.errors import MalformedRequest
from latermq.message.json_members import members
from latermq.message.names import is_group, is_stored_topic
from latermq.protocol.remoting.bodies import (
    DataVersion,
    OffsetTable,
    SubscriptionGroup,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    decode_body,
)
from latermq.protocol.remoting.numbers import Int32, Int64
from latermq.store.disk import Disk
from latermq.store.set_aside import NotUnderstoodError, Parsed, Trouble, load_file

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
    """Which field of a table holds its entries, of which type they are, and what is wrong with one that has it."""

    field: str
    entry: Any
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


_OTHER_FIELDS: dict[str, Any] = {"dataVersion": DataVersion, "forbiddenTable": dict[str, dict[str, Int32]]}
_SHAPES: dict[type[Struct], _Shape] = {
    TopicConfigTable: _Shape("topicConfigTable", TopicConfig, _topic_fault),
    SubscriptionGroupTable: _Shape("subscriptionGroupTable", SubscriptionGroup, _group_fault),
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
            mended = _without_odd_numbers(value, shape.entry)
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


def _without_odd_numbers(data: bytes, type_: Any) -> Any:
    """An entry without the numbers that no field of it can hold, where nothing else is wrong with it.

    Earlier releases took such numbers from clients. The field has its default then.
    """
    try:
        return msgspec.convert(_reduced(decode_body(data, dict[str, Any]), type_), type_, strict=False)
    except (MalformedRequest, msgspec.ValidationError):
        return None


def _reduced(value: Any, type_: Any) -> Any:
    named: dict[str, Any] = {}
    if isinstance(type_, type) and issubclass(type_, Struct):
        named = {field.encode_name: field.type for field in msgspec.structs.fields(type_)}
    elif get_origin(type_) is dict and isinstance(value, dict):
        named = dict.fromkeys(value, get_args(type_)[1])
    if not named or not isinstance(value, dict):
        return value
    return {
        name: _reduced(inner, named.get(name))
        for name, inner in value.items()
        if not (isinstance(inner, int) and name in named and _is_odd(inner, named[name]))
    }


def _is_odd(value: int, type_: Any) -> bool:
    """Whether a field takes numbers, but not this one."""
    return _fits(0, type_) and not _fits(value, type_)


def _fits(value: int, type_: Any) -> bool:
    try:
        msgspec.convert(value, type_, strict=False)
    except msgspec.ValidationError:
        return False
    return True


def load_unused(disk: Disk) -> UnusedNames:
    """The names that nobody has used; where the file is not understood none are, so that all of them stay."""
    try:
        return decode_body(disk.read(UNUSED_PATH) or b"{}", UnusedNames)
    except MalformedRequest:
        return UnusedNames()
