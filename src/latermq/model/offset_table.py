"""Offset tables of consumer groups and of delay levels."""

from msgspec import Struct, field

from latermq.model.data_version import DataVersion


class OffsetTable(Struct, kw_only=True):
    """Consumer offsets: `topic@group` → queue id → offset."""

    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    version: DataVersion = field(default_factory=DataVersion)


class DelayOffsetTable(Struct, kw_only=True):
    """Delay level → queue offset below which all messages were delivered."""

    offsets: dict[int, int] = field(default_factory=dict)
    version: DataVersion = field(default_factory=DataVersion)
