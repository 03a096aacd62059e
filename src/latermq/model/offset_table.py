"""Offsets as tables keep them: of consumer groups, and of delay levels."""

from msgspec import Struct, field

from latermq.model.data_version import DataVersion


class OffsetTable(Struct, kw_only=True):
    """Consumer offsets: `topic@group` → queue id → offset."""

    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    version: DataVersion = field(default_factory=DataVersion)


class DelayOffsetTable(Struct, kw_only=True):
    """For each delay level the queue offset below which everything was delivered."""

    offsets: dict[int, int] = field(default_factory=dict)
    version: DataVersion = field(default_factory=DataVersion)
