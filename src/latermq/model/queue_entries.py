"""A consume queue as operators look at it."""

from msgspec import Struct, field

from latermq.model.subscription import Subscription


class QueueEntry(Struct):
    """One entry of a consume queue, and whether a group's tags let it through."""

    physical_offset: int
    size_bytes: int
    tags_code: int
    is_wanted: bool = False


class QueueEntries(Struct, kw_only=True):
    """Some entries of a queue; for a group also what it wants of the topic, or why that is not known."""

    min_offset: int
    max_offset: int
    entries: list[QueueEntry] = field(default_factory=list)
    subscription: Subscription | None = None
    note: str | None = None
