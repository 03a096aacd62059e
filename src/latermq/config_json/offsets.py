"""RocketMQ's JSON format of offsets: consumerOffset.json and delayOffset.json."""

from msgspec import Struct, field

from latermq.config_json.numbers import Int32, Int64
from latermq.config_json.topics import DataVersionJson


class OffsetTableJson(Struct, kw_only=True, rename={"offsets": "offsetTable", "version": "dataVersion"}):
    """consumerOffset.json: `topic@group` → queue id → offset."""

    offsets: dict[str, dict[Int32, Int64]] = field(default_factory=dict)
    version: DataVersionJson = field(default_factory=DataVersionJson)


class DelayOffsetTableJson(Struct, kw_only=True, rename={"offsets": "offsetTable", "version": "dataVersion"}):
    """delayOffset.json: delay level → queue offset below which all messages were delivered."""

    offsets: dict[Int32, Int64] = field(default_factory=dict)
    version: DataVersionJson = field(default_factory=DataVersionJson)
