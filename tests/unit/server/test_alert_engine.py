"""Alerts on a clock turned by hand: when they fire and end, what a gap or an unknown broker changes, their limit."""

import msgspec

from latermq.clock import SimulatedClock
from latermq.config import AlertsConfig, Duration
from latermq.http.alerts.alert import Alert, Finding, Findings
from latermq.http.alerts.engine import AlertEngine

CONFIG = AlertsConfig()  # resolve_after is one minute
SCOPE = {("late", "a"), ("late", "b")}


def finding(value: float = 5.0, broker: str = "a", *, for_s: float = 30.0) -> Finding:
    return Finding("late", {"broker": broker}, value, 1.0, "late", "", is_bad=value > 1.0, for_s=for_s)


class Watched:
    """An engine, and the changes that it reported."""

    def __init__(self, config: AlertsConfig = CONFIG) -> None:
        self.clock = SimulatedClock()
        self.engine = AlertEngine(config, self.clock)
        self.changes: list[Alert] = []

    def rounds(self, seconds: int, *found: Finding, examined: set[tuple[str, str]] = SCOPE) -> None:
        """One round every ten seconds, the first at once."""
        for _ in range(seconds // 10 + 1):
            self.changes += self.engine.observe(Findings(list(found), examined))
            self.clock.advance(10_000)

    @property
    def states(self) -> list[str]:
        return [alert.state for alert in self.changes]


def test_a_condition_becomes_an_alert_when_it_has_held_for_its_time() -> None:
    watched = Watched()
    watched.rounds(20, finding())
    assert watched.states == []
    watched.rounds(0, finding())
    assert watched.states == ["firing"]
    [alert] = watched.engine.firing()
    assert alert.since_ms == alert.started_ms == watched.clock.now_ms() - 10_000
    watched.rounds(600, finding(7.0))
    assert watched.states == ["firing"]
    [later] = watched.engine.firing()
    assert (later.value, later.since_ms, later.id) == (7.0, alert.since_ms, alert.id)


def test_a_condition_that_comes_and_goes_becomes_no_alert() -> None:
    watched = Watched()
    for _ in range(20):
        watched.rounds(20, finding())
        watched.rounds(0)
    assert watched.states == []


def test_an_alert_ends_once_however_its_value_swings_around_the_threshold() -> None:
    watched = Watched()
    watched.rounds(0, finding(for_s=0))
    for _ in range(20):
        watched.rounds(0, finding(0.9))  # below the threshold, above where the condition ends
        watched.rounds(40)  # ended, but not for a minute
        watched.rounds(0, finding(for_s=0))
    assert watched.states == ["firing"]
    watched.rounds(70)
    assert watched.states == ["firing", "resolved"]
    [ended] = watched.engine.resolved()
    assert ended.since_ms > ended.started_ms
    assert watched.engine.firing() == []


def test_an_alert_whose_broker_says_nothing_keeps_its_state() -> None:
    watched = Watched()
    watched.rounds(0, finding(for_s=0))
    watched.rounds(3_600, examined={("late", "b")})
    assert watched.states == ["firing"]
    watched.rounds(70)
    assert watched.states == ["firing", "resolved"]


def test_after_a_time_without_rounds_conditions_have_to_hold_for_their_time_again() -> None:
    watched = Watched()
    watched.rounds(0, finding())
    watched.clock.advance(3_600_000)
    watched.rounds(20, finding())
    assert watched.states == []
    watched.rounds(10, finding())
    assert watched.states == ["firing"]
    watched.rounds(0)
    watched.clock.advance(3_600_000)
    watched.rounds(50)
    assert watched.states == ["firing"]
    watched.rounds(10)
    assert watched.states == ["firing", "resolved"]


def test_alerts_of_two_brokers_are_two_and_have_the_same_ids_after_a_restart() -> None:
    first, second = Watched(), Watched()
    for watched in (first, second):
        watched.rounds(0, finding(for_s=0), finding(broker="b", for_s=0))
    ids = [{alert.id for alert in watched.engine.firing()} for watched in (first, second)]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 2


def test_an_alert_that_fired_before_a_restart_is_not_raised_again_and_ends() -> None:
    before, after = Watched(), Watched()
    before.rounds(0, finding(for_s=0))
    kept = msgspec.json.decode(msgspec.json.encode(before.engine.firing()), type=list[Alert])
    after.engine.restore(kept)
    after.rounds(60, finding(for_s=0))
    assert after.states == []
    after.rounds(70)
    assert after.states == ["resolved"]
    assert after.changes[0].started_ms == kept[0].started_ms


def test_above_the_limit_alerts_are_counted_and_not_raised() -> None:
    watched = Watched(AlertsConfig(max_alerts=3, keep_resolved=Duration(86_400_000)))
    many = [finding(broker=str(number), for_s=0) for number in range(10)]
    watched.rounds(0, *many)
    assert (len(watched.engine), watched.engine.suppressed) == (3, 7)
    watched.rounds(70, examined={("late", str(number)) for number in range(10)})
    assert watched.states == ["firing"] * 3 + ["resolved"] * 3
    watched.rounds(0, *(finding(broker=f"other-{number}", for_s=0) for number in range(2)))
    assert len(watched.engine) == 3
    assert [alert.subject["broker"] for alert in watched.engine.resolved()] == ["2"]


def test_resolved_alerts_are_listed_for_a_time_and_all_of_a_broker_end_with_it() -> None:
    watched = Watched()
    watched.rounds(0, finding(for_s=0), finding(broker="b", for_s=0))
    assert [alert.state for alert in watched.engine.end_all_of("a")] == ["resolved"]
    assert len(watched.engine.resolved()) == 1
    watched.rounds(3_700, finding(broker="b"))
    assert watched.engine.resolved() == []
    assert len(watched.engine.firing()) == 1
