"""RocketMQ's JSON of offsets: consumerOffset.json and delayOffset.json."""

from msgspec import Struct, field

from latermq.config_json.numbers import Int32, Int64
from latermq.config_json.topics import DataVersionJson


class OffsetTableJson(Struct, kw_only=True, rename={"offsets": "offsetTable", "version": "dataVersion"}):
    """consumerOffset.json: `topic@group` → queue id → offset."""

    offsets: dict[str, dict[Int32, Int64]] = field(default_factory=dict)
    version: DataVersionJson = field(default_factory=DataVersionJson)


class DelayOffsetTableJson(Struct, kw_only=True, rename={"offsets": "offsetTable", "version": "dataVersion"}):
    """delayOffset.json: for each level the queue offset below which everything was delivered."""

    offsets: dict[Int32, Int64] = field(default_factory=dict)
    version: DataVersionJson = field(default_factory=DataVersionJson)
