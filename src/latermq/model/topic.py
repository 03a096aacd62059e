"""Topics and their configuration."""

from typing import Literal

from msgspec import Struct, field

from latermq.model.data_version import DataVersion

# Bits of a topic's permissions.
READ = 4
WRITE = 2
INHERIT = 1  # new topics may inherit the configuration of this one

FilterType = Literal["SINGLE_TAG", "MULTI_TAG"]


class Topic(Struct, kw_only=True):
    """A topic and its queues."""

    name: str
    read_queues: int = 8
    write_queues: int = 8
    permissions: int = READ | WRITE
    filter_type: FilterType = "SINGLE_TAG"
    system_flags: int = 0
    is_ordered: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


class TopicTable(Struct, kw_only=True):
    """All topics of a broker, by name."""

    topics: dict[str, Topic] = field(default_factory=dict)
    version: DataVersion = field(default_factory=DataVersion)
