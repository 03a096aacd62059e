"""What was asked of timers and what was answered, and whether what lies in their topic agrees with it.

A request that got an answer has done what the answer says. One without, because its broker died, may have been done or
not; so each timer has a set of fates that are possible. Whatever happened, none comes twice or early.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from latermq.message.record import Message
from latermq.model.timers import Outcome, Verdict


@dataclass(slots=True)
class Fates:
    """What may have become of one timer."""

    dues_ms: set[int]
    may_be_absent: bool
    moved_from_ms: int | None = None  # a move without an answer: to this time, or later where that had passed
    told: Verdict | None = None  # what no later answer may contradict

    def allow(self, due_ms: int) -> bool:
        """Whether it may have come with this due time."""
        return due_ms in self.dues_ms or (self.moved_from_ms is not None and due_ms > self.moved_from_ms)


@dataclass
class Ledger:
    """All timers of a run, by their unique keys."""

    fates: dict[str, Fates] = field(default_factory=dict)
    acknowledged: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def scheduled(self, name: str, due_ms: int, *, answered: bool) -> None:
        """A timer was sent."""
        self.fates[name] = Fates({due_ms}, may_be_absent=not answered)
        self.acknowledged += answered
        self.counts["scheduled" if answered else "sends without an answer"] += 1

    def cancelled(self, name: str, outcome: Outcome | None) -> None:
        """A cancel was asked for, with this answer or none."""
        fates = self.fates[name]
        if outcome is None:
            self.counts["cancels without an answer"] += 1
            fates.may_be_absent = True
            return
        self.counts[f"cancel: {outcome.verdict}"] += 1
        self._check_told(name, outcome, (Verdict.CANCELLED, Verdict.DELIVERED, Verdict.NOT_FOUND))

    def moved(self, name: str, due_ms: int, outcome: Outcome | None) -> None:
        """A move was asked for, with this answer or none."""
        fates = self.fates[name]
        if outcome is None:
            self.counts["moves without an answer"] += 1
            fates.dues_ms.add(due_ms)
            fates.moved_from_ms = min(due_ms, fates.moved_from_ms or due_ms)
            return
        self.counts[f"move: {outcome.verdict}"] += 1
        if outcome.verdict == Verdict.MOVED:
            assert fates.told is None, f"{name} was {fates.told}, and is moved all the same"
            assert outcome.timers == 1
            assert outcome.due_ms >= due_ms
            self.fates[name] = Fates({outcome.due_ms}, may_be_absent=False)
            return
        possible = (Verdict.DELIVERED, Verdict.NOT_FOUND)
        # Nobody was told of a cancel, but one that got no answer may have been done.
        self._check_told(name, outcome, (*possible, Verdict.CANCELLED) if fates.may_be_absent else possible)

    def _check_told(self, name: str, outcome: Outcome, possible: tuple[Verdict, ...]) -> None:
        fates = self.fates[name]
        expected = (fates.told,) if fates.told else possible
        assert outcome.verdict in expected, f"{name} is {outcome.verdict}, expected was {' or '.join(expected)}"
        fates.told = outcome.verdict
        fates.may_be_absent = outcome.verdict == Verdict.CANCELLED
        if fates.may_be_absent:
            fates.dues_ms, fates.moved_from_ms = set(), None

    def check(self, messages: Iterable[Message]) -> None:
        """What lies in the topic is what was promised: each once, none early, none that was cancelled."""
        times: Counter[str] = Counter()
        for message in messages:
            name = message.properties["UNIQ_KEY"]
            times[name] += 1
            assert message.body == name.encode()
            fates = self.fates[name]
            # One that reached the broker after its time has gone straight to its topic and never was a timer.
            was_timer = "LMQ_DUE_MS" in message.properties
            assert was_timer or fates.told in (None, Verdict.NOT_FOUND)
            assert not was_timer or fates.told != Verdict.NOT_FOUND, f"{name} was not found, but there it is"
            due_ms = int(message.properties["LMQ_DUE_MS" if was_timer else "TIMER_DELIVER_MS"])
            assert fates.allow(due_ms), f"{name} came for {due_ms}, possible was {fates}"
            assert message.store_timestamp_ms >= due_ms, f"{name} came {due_ms - message.store_timestamp_ms} ms early"
        assert [name for name, count in times.items() if count > 1] == [], "came twice"
        missing = [name for name, fates in self.fates.items() if not fates.may_be_absent and not times[name]]
        assert missing == [], f"{len(missing)} of {self.acknowledged} never came"
