"""The compiled filters of waiting pulls. A filter that several pulls share is counted once."""

from latermq.group.filters import MessageFilter


class FilterUsage:
    """Counts filters in use by identity, because an equal filter that was compiled again uses memory of its own."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._holders: dict[int, int] = {}
        self._bytes = 0

    def fits(self, message_filter: MessageFilter) -> bool:
        """Whether the limit allows this filter; one that is already in use needs no more room."""
        return id(message_filter) in self._holders or self._bytes + message_filter.size_bytes <= self._max_bytes

    def hold(self, message_filter: MessageFilter) -> int:
        """Add one holder; return the bytes that this adds."""
        if not message_filter.size_bytes:
            return 0
        holders = self._holders.get(id(message_filter), 0)
        self._holders[id(message_filter)] = holders + 1
        if holders:
            return 0
        self._bytes += message_filter.size_bytes
        return message_filter.size_bytes

    def release(self, message_filter: MessageFilter) -> None:
        """Remove one holder."""
        if not message_filter.size_bytes:
            return
        self._holders[id(message_filter)] -= 1
        if not self._holders[id(message_filter)]:
            del self._holders[id(message_filter)]
            self._bytes -= message_filter.size_bytes

    def statistics(self) -> dict[str, int]:
        """Number and size of the filters in use."""
        return {"waiting_filters": len(self._holders), "waiting_filters_bytes": self._bytes}
