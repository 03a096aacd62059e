"""RocketMQ's JSON files under config/: read at start, replaced when their table changed."""

from collections.abc import Callable
from typing import TypeVar

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
from latermq.store.disk import Disk

TOPICS_PATH = "config/topics.json"
GROUPS_PATH = "config/subscriptionGroup.json"
OFFSETS_PATH = "config/consumerOffset.json"
DELAY_OFFSETS_PATH = "config/delayOffset.json"


class DelayOffsetTable(Struct, kw_only=True):
    """delayOffset.json: for each level the queue offset below which everything was delivered."""

    offsetTable: dict[int, int] = field(default_factory=dict)
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
        raise CorruptStore(f"{path} does not parse: {error.message}", hint=f"Mend or remove {path}") from None


def save_table(disk: Disk, path: str, table: Table) -> None:
    """Replace a config file."""
    disk.replace(path, encode_body(table))
