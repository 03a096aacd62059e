"""RocketMQ's JSON files under config/: read at start, replaced when their table changed."""

from collections.abc import Callable
from typing import Any, TypeVar, get_args, get_origin

import msgspec
import structlog
from msgspec import Struct, field

from latermq.errors import CorruptStore, MalformedRequest
from latermq.protocol.remoting.bodies import (
    DataVersion,
    OffsetTable,
    SubscriptionGroupTable,
    TopicConfigTable,
    decode_body,
    encode_body,
)
from latermq.protocol.remoting.numbers import Int32, Int64
from latermq.store.disk import Disk

TOPICS_PATH = "config/topics.json"
GROUPS_PATH = "config/subscriptionGroup.json"
OFFSETS_PATH = "config/consumerOffset.json"
DELAY_OFFSETS_PATH = "config/delayOffset.json"

_log = structlog.get_logger(__name__)


class DelayOffsetTable(Struct, kw_only=True):
    """delayOffset.json: for each level the queue offset below which everything was delivered."""

    offsetTable: dict[Int32, Int64] = field(default_factory=dict)
    dataVersion: DataVersion = field(default_factory=DataVersion)


Table = TypeVar("Table", TopicConfigTable, SubscriptionGroupTable, OffsetTable, DelayOffsetTable)


def load_table(disk: Disk, path: str, type_: type[Table], empty: Callable[[], Table]) -> Table:
    """The table in a config file, an empty one where there is no file."""
    data = disk.read(path)
    if data is None:
        return empty()
    try:
        return decode_body(data, type_)
    except MalformedRequest as error:
        try:
            table = msgspec.convert(_without_odd_numbers(decode_body(data, dict[str, Any]), type_), type_, strict=False)
        except (MalformedRequest, msgspec.ValidationError):
            raise CorruptStore(f"{path} does not parse: {error.message}", hint=f"Mend or remove {path}") from None
        _log.warning("numbers left out of a config file", file=path, reason=error.message)
        return table


def _without_odd_numbers(value: Any, type_: Any) -> Any:
    """A table out of JSON without the numbers that no field can hold: earlier releases took them from clients.

    The field has its default then. Whatever else is wrong stays, and is told.
    """
    named: dict[str, Any] = {}
    if isinstance(type_, type) and issubclass(type_, Struct):
        named = {field.encode_name: field.type for field in msgspec.structs.fields(type_)}
    elif get_origin(type_) is dict and isinstance(value, dict):
        named = dict.fromkeys(value, get_args(type_)[1])
    if not named or not isinstance(value, dict):
        return value
    return {
        name: _without_odd_numbers(inner, named.get(name))
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


def save_table(disk: Disk, path: str, table: Table) -> None:
    """Replace a config file."""
    disk.replace(path, encode_body(table))
