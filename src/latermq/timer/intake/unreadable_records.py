"""Unreadable records of the timer topic: they have no effect and block nothing, but are reported to operators."""

KEPT = 20  # number of records described in detail


class UnreadableRecords:
    """The number of skipped records, and descriptions of the first ones."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def note(self, entry: int, reason: str) -> None:
        """Note a skipped record."""
        self.count += 1
        if len(self.first) < KEPT:
            self.first.append(f"entry {entry}: {reason}")
