"""The compiled filters of pulls that wait: each counted once, however many pulls share it."""

from latermq.group.filters import MessageFilter


class HeldFilters:
    """Those that something holds, known by identity: an equal one that was compiled again takes its own memory."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._holders: dict[int, int] = {}
        self._bytes = 0

    def fits(self, message_filter: MessageFilter) -> bool:
        """Whether there is room for it, which one that is held already does not need."""
        return id(message_filter) in self._holders or self._bytes + message_filter.size_bytes <= self._max_bytes

    def hold(self, message_filter: MessageFilter) -> int:
        """Count one more who holds it; the bytes that this takes."""
        if not message_filter.size_bytes:
            return 0
        holders = self._holders.get(id(message_filter), 0)
        self._holders[id(message_filter)] = holders + 1
        if holders:
            return 0
        self._bytes += message_filter.size_bytes
        return message_filter.size_bytes

    def release(self, message_filter: MessageFilter) -> None:
        """Count one less."""
        if not message_filter.size_bytes:
            return
        self._holders[id(message_filter)] -= 1
        if not self._holders[id(message_filter)]:
            del self._holders[id(message_filter)]
            self._bytes -= message_filter.size_bytes

    def statistics(self) -> dict[str, int]:
        """What is held."""
        return {"waiting_filters": len(self._holders), "waiting_filters_bytes": self._bytes}
