"""Bulk cancels and moves do to each name what a single request does, and write the same records."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from latermq.broker.broker import Broker
from latermq.broker.timers.pending import SeenTimers
from latermq.clock import SimulatedClock
from latermq.errors import MalformedRequest
from latermq.message.names import TIMER_TOPIC
from latermq.model.rows import Column
from latermq.model.timer_changes import NO_TIME, TimerChanges
from latermq.protocol.remoting.timer_changes import (
    ALONE,
    MAX_CHANGES,
    REFUSED,
    VERDICTS,
    decode_change_outcomes,
    decode_changes,
    encode_change_outcomes,
    encode_changes,
)
from latermq.store.files.memory_disk import MemoryDisk
from latermq.timer.steps import at_once
from tests.support.brokers_in_memory import HOST, messages, open_broker, pass_time, send
from tests.support.pipeline.far_broker import FarBroker
from tests.support.rows import Row, batch_of

Change = tuple[str, str, int, tuple[int, ...], int]  # topic, unique key, new due time, timers, seen before


def changes_of(rows: list[Change]) -> TimerChanges:
    topics = list(dict.fromkeys(row[0] for row in rows))
    counts = [len(row[3]) for row in rows]
    return TimerChanges(
        topics,
        np.array([topics.index(row[0]) for row in rows], np.uint16),
        Column.of(row[1].encode() for row in rows),
        np.array([row[2] for row in rows], np.int64),
        np.array([row[4] for row in rows], np.int64),
        np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        np.array([one for row in rows for one in row[3]], np.int64),
    )


def change(broker: Broker, rows: list[Change]) -> list[str]:
    decoded = decode_changes(encode_changes(changes_of(rows)))
    outcomes = at_once(broker.bulk_changes.change_steps(decoded, VERDICTS))
    again = decode_change_outcomes(encode_change_outcomes(outcomes))
    assert again == outcomes
    return [str(VERDICTS[number]) for number in outcomes.verdicts]


def change_singly(broker: Broker, rows: list[Change]) -> list[str]:
    found = []
    for topic, key, due_ms, ids, before in rows:
        seen = SeenTimers(frozenset(ids), None if before == NO_TIME else before)
        if due_ms == NO_TIME:
            found.append(str(broker.pending.cancel(topic, key, seen).verdict))
        else:
            found.append(str(broker.pending.move(topic, key, due_ms, seen=seen).verdict))
    return found


def entries(broker: Broker) -> list[tuple[bytes, str]]:
    """The records of the timer topic. Within a slice, names that need a look-up of their own come last."""
    return sorted((one.body, str(one.properties)) for one in messages(broker, TIMER_TOPIC, 0))


class Twins:
    """Two brokers that are told the same, one of them in bulk."""

    def __init__(self) -> None:
        self.clocks = SimulatedClock(), SimulatedClock()
        self.bulk, self.single = (open_broker(MemoryDisk(), clock) for clock in self.clocks)
        self.now_ms = self.clocks[0].now_ms()

    def each(self) -> tuple[tuple[Broker, SimulatedClock], ...]:
        return (self.bulk, self.clocks[0]), (self.single, self.clocks[1])

    def schedule(self, rows: list[Row]) -> None:
        for broker, _ in self.each():
            broker.row_schedule.schedule(batch_of(rows), HOST)

    def pass_time(self, by_ms: int) -> None:
        for broker, clock in self.each():
            pass_time(broker, clock, by_ms)

    def check(self, rows: list[Change]) -> list[str]:
        verdicts = change(self.bulk, rows)
        assert verdicts == change_singly(self.single, rows)
        assert entries(self.bulk) == entries(self.single)
        assert self.bulk.timers.pending == self.single.timers.pending
        assert self.bulk.timers.tallies == self.single.timers.tallies
        return verdicts

    def delivered(self) -> list[list[bytes]]:
        return [
            sorted(message.body for queue in range(8) for message in messages(broker, "orders", queue))
            for broker, _ in self.each()
        ]


@pytest.mark.parametrize("seed", range(8))
def test_a_bulk_change_is_the_same_as_many_single_ones(seed: int) -> None:
    chance, twins = Random(seed), Twins()
    names = [f"K{number}" for number in range(400)]
    twins.schedule([Row(key, delay_ms=chance.randrange(2_000, 60_000), body=key.encode()) for key in names])
    for _ in range(4):
        chosen = chance.sample(range(400), 60)
        rows: list[Change] = []
        for number in chosen:
            due_ms = NO_TIME if chance.random() < 0.6 else twins.now_ms + chance.randrange(1_000, 90_000)
            ids = (number,) if chance.random() < 0.9 else (number + 5_000,)
            rows.append(("orders", names[number], due_ms, ids, 400 if chance.random() < 0.5 else NO_TIME))
        twins.check([*rows, ("orders", "unknown", NO_TIME, (1,), NO_TIME), ("other", "K1", NO_TIME, (1,), NO_TIME)])
        twins.pass_time(chance.randrange(500, 8_000))
    twins.pass_time(200_000)
    bulk, single = twins.delivered()
    assert bulk == single
    assert 0 < len(bulk) < 400


def test_a_name_twice_in_a_request_is_changed_in_order() -> None:
    twins = Twins()
    twins.schedule([Row("a", delay_ms=9_000), Row("b", delay_ms=9_000)])
    due_ms = twins.now_ms + 20_000
    rows: list[Change] = [
        ("orders", "a", due_ms, (0,), NO_TIME),
        ("orders", "a", NO_TIME, (0,), NO_TIME),
        ("orders", "b", NO_TIME, (1,), NO_TIME),
        ("orders", "b", NO_TIME, (1,), NO_TIME),
    ]
    assert twins.check(rows) == ["moved", "cancelled", "cancelled", "cancelled"]


def test_a_name_with_a_timer_that_the_plan_did_not_see_is_left_alone() -> None:
    twins = Twins()
    twins.schedule([Row("a", delay_ms=9_000), Row("b", delay_ms=9_000)])
    for broker, _ in twins.each():
        send(broker, b"newer", UNIQ_KEY="a", TIMER_DELAY_MS="8000")
    assert twins.check([("orders", "a", NO_TIME, (0,), 2), ("orders", "b", NO_TIME, (7,), 2)]) == ["replaced"] * 2


def test_a_move_that_is_too_far_is_refused_for_its_name_alone() -> None:
    twins = Twins()
    twins.schedule([Row("a", delay_ms=9_000), Row("b", delay_ms=9_000)])
    rows: list[Change] = [("orders", "a", 1 << 60, (0,), NO_TIME), ("orders", "b", twins.now_ms + 1, (1,), NO_TIME)]
    decoded = decode_changes(encode_changes(changes_of(rows)))
    outcomes = at_once(twins.bulk.bulk_changes.change_steps(decoded, VERDICTS))
    assert [VERDICTS[number] for number in outcomes.verdicts] == [REFUSED, "moved"]
    assert list(outcomes.problems) == [0]


def test_a_far_timer_without_its_record_is_cancelled_in_bulk_and_moved_alone() -> None:
    scene = FarBroker()
    try:
        for name in ("a", "b"):
            scene.schedule(name)
        listed = messages(scene.broker, TIMER_TOPIC, 0)
        timers = {one.properties.get("UNIQ_KEY", ""): one.queue_offset for one in listed}
        scene.lose_log()
        due_ms = scene.clock.now_ms() + 100_000
        rows: list[Change] = [
            ("orders", "a", NO_TIME, (timers["a"],), NO_TIME),
            ("orders", "b", due_ms, (timers["b"],), NO_TIME),
        ]
        assert change(scene.broker, rows) == ["cancelled", ALONE]
    finally:
        scene.close()


def test_the_loop_is_given_back_between_slices() -> None:
    twins = Twins()
    names = [f"K{number}" for number in range(1_000)]
    twins.schedule([Row(key, delay_ms=60_000) for key in names])
    rows: list[Change] = [("orders", key, NO_TIME, (number,), NO_TIME) for number, key in enumerate(names)]
    counts = []
    for _ in twins.bulk.bulk_changes.change_steps(changes_of(rows), VERDICTS):
        counts.append(twins.bulk.timers.tallies.cancelled)
    assert len(counts) == 1_000
    assert max(later - earlier for earlier, later in pairwise(counts)) <= 200


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda body: body[:3], "cannot have 3 bytes"),
        (lambda body: b"none" + body[4:], "starts with"),
        (lambda body: body[:4] + (MAX_CHANGES + 1).to_bytes(4, "little") + body[8:], "are too many"),
        (lambda body: body + b"x", "after its last column"),
        (lambda body: body[:-1], "truncated"),
    ],
)
def test_a_malformed_request_is_refused(damage: object, reason: str) -> None:
    body = encode_changes(changes_of([("orders", "a", NO_TIME, (0,), NO_TIME)]))
    assert callable(damage)
    with pytest.raises(MalformedRequest, match=reason):
        decode_changes(damage(body))


def test_every_name_must_say_which_timers_it_means() -> None:
    with pytest.raises(MalformedRequest, match="must list the timers"):
        decode_changes(encode_changes(changes_of([("orders", "a", NO_TIME, (), NO_TIME)])))
    with pytest.raises(MalformedRequest, match="empty"):
        decode_changes(encode_changes(changes_of([("orders", "", NO_TIME, (1,), NO_TIME)])))
