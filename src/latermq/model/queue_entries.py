"""Entries of a consume queue, for operators."""

from msgspec import Struct, field

from latermq.model.subscription import Subscription


class QueueEntry(Struct):
    """One entry of a consume queue, and whether it matches a group's tags."""

    physical_offset: int
    size_bytes: int
    tags_code: int
    is_wanted: bool = False


class QueueEntries(Struct, kw_only=True):
    """Some entries of a queue. For a group, also its subscription to the topic, or a note why that is unknown."""

    min_offset: int
    max_offset: int
    entries: list[QueueEntry] = field(default_factory=list)
    subscription: Subscription | None = None
    note: str | None = None
