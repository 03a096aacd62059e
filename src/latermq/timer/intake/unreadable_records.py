"""Records of the timer topic that cannot be understood: they do nothing and stop nobody, but operators hear of them."""

KEPT = 20  # of which it is told what they are


class PassedOver:
    """How many there were, and the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def note(self, entry: int, reason: str) -> None:
        """This one was passed over."""
        self.count += 1
        if len(self.first) < KEPT:
            self.first.append(f"entry {entry}: {reason}")
