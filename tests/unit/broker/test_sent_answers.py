"""Answers to leased pops whose connection is lost."""

from latermq.broker.pop.sent_answers import DOUBTFUL_S, SentAnswers
from latermq.clock import SimulatedClock
from latermq.group.pop.leases import lease_id
from latermq.group.pop.operations import LEASE_MS, PopOperations
from latermq.group.pop.table import InFlightTable

LEASE = lease_id("client")


class Scene:
    """A queue with messages that one client pops."""

    def __init__(self) -> None:
        self.clock = SimulatedClock(1_800_000_000_000)
        self.operations = PopOperations(InFlightTable())
        self.queue = self.operations.open_queue("shop", "orders", 0, 0)
        self.answers = SentAnswers(self.operations, self.clock, self.clock)

    def pop(self, connection: str) -> None:
        first = self.operations.table.next_of(self.queue)
        now_ms = self.clock.now_ms()
        pop_ms = self.operations.pop(self.queue, range(first, first + 1), first + 1, now_ms, 1_000, LEASE)
        self.answers.note(connection, LEASE, pop_ms)

    def visible_after_the_lease(self) -> list[int]:
        self.operations.renew([LEASE], self.clock.now_ms())
        self.clock.advance(LEASE_MS - 1)
        self.operations.renew([LEASE], self.clock.now_ms())
        assert self.operations.due(self.clock.now_ms())[0] == []
        self.clock.advance(1)
        return [offset for one in self.operations.due(self.clock.now_ms())[0] for offset in one.offsets]


def test_the_answers_of_the_last_seconds_are_lost_with_their_connection_and_older_ones_were_received() -> None:
    scene = Scene()
    scene.pop("a")
    scene.clock.advance(int(DOUBTFUL_S * 1000) + 1)
    scene.pop("a")
    scene.clock.advance(1)
    scene.pop("b")
    assert scene.answers.remove_client("a")
    assert not scene.answers.remove_client("unknown")
    assert scene.visible_after_the_lease() == [1]
    assert scene.answers.statistics() == {"recent_pop_answers": 1, "lost_pop_answers": 1}


def test_a_connection_that_sent_nothing_lately_loses_nothing() -> None:
    scene = Scene()
    scene.pop("a")
    scene.clock.advance(int(DOUBTFUL_S * 1000) + 1)
    assert not scene.answers.remove_client("a")
    assert scene.visible_after_the_lease() == []
