"""Bulk cancels and moves do to each name what a single request does, and write the same records."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from latermq.broker.broker import Broker
from latermq.broker.timers.bulk_changes import CANCELS_AT_ONCE, CANCELS_PER_STEP, CHANGES_AT_ONCE
from latermq.broker.timers.pending import SeenTimers
from latermq.clock import SimulatedClock
from latermq.errors import MalformedRequest
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import encode_properties
from latermq.message.record import decode_record, decode_records
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
from latermq.store.log_writer import Draft
from latermq.timer.admission import waiting_properties
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


@pytest.mark.parametrize(("moves", "at_once"), [(0, CANCELS_AT_ONCE), (1, CHANGES_AT_ONCE)])
def test_the_loop_is_given_back_between_slices(moves: int, at_once: int) -> None:
    twins = Twins()
    names = [f"K{number}" for number in range(1_000)]
    twins.schedule([Row(key, delay_ms=60_000) for key in names])
    later_ms = twins.now_ms + 90_000
    rows: list[Change] = [
        ("orders", key, later_ms if number % 2 < moves else NO_TIME, (number,), NO_TIME)
        for number, key in enumerate(names)
    ]
    counts, tallies = [], twins.bulk.timers.tallies
    for _ in twins.bulk.bulk_changes.change_steps(changes_of(rows), VERDICTS):
        counts.append(tallies.cancelled + tallies.moved)
    assert tallies.cancelled + tallies.moved == 1_000
    assert len(counts) >= 1_000 // CANCELS_PER_STEP
    assert max(later - earlier for earlier, later in pairwise(counts)) <= at_once


def test_a_move_that_is_refused_refuses_no_other() -> None:
    clock = SimulatedClock()
    broker = open_broker(MemoryDisk(), clock)
    now_ms = clock.now_ms()
    waiting = waiting_properties({"UNIQ_KEY": "odd"}, "orders", 0, now_ms + 60_000) | {"REAL_QID": "none"}
    odd = Draft(
        TIMER_TOPIC, 0, b"x", encode_properties(waiting).encode(), now_ms, HOST
    )  # as an importer might write it
    broker.store.writer.append_all([odd])
    for key in ("K1", "K2"):
        send(broker, b"x", UNIQ_KEY=key, TIMER_DELAY_MS="60000")
    rows: list[Change] = [("orders", key, now_ms + 90_000, (n,), 3) for n, key in enumerate(("odd", "K1", "K2"))]
    outcomes = at_once(broker.bulk_changes.change_steps(changes_of(rows), VERDICTS))
    assert [str(VERDICTS[number]) for number in outcomes.verdicts] == [REFUSED, "moved", "moved"]
    assert list(outcomes.problems) == [0]
    assert "no valid queue" in outcomes.problems[0]
    assert broker.timers.tallies.moved == 2


@pytest.mark.parametrize("topic", ["orders", "%RETRY%group", "%d-%s_1111111111111", "1111111111000"])
def test_the_records_of_many_cancels_are_those_of_single_ones(topic: str) -> None:
    clock = SimulatedClock()
    broker, keys = open_broker(MemoryDisk(), clock), [b"K1", "\u00e9%d".encode(), b"%(due)d", b"1111111111111"]
    dues = clock.now_ms() + np.array([1, 999, 1_000, 86_400_000])
    block = broker.pending.cancel_block([topic], np.zeros(4, np.intp), keys, dues, np.zeros(4, np.int64))
    for key, due_ms, record in zip(keys, dues.tolist(), decode_records(bytes(block.data)), strict=True):
        draft = broker.pending.cancel_draft(topic, f"{topic}+{key.decode()}", due_ms, str(due_ms))
        single = decode_record(broker.store.writer.encode(draft))
        assert (record.topic, record.body, record.body_crc) == (single.topic, single.body, single.body_crc)
        assert list(record.properties.items()) == list(single.properties.items())
        assert (record.born_host, record.store_host) == (single.born_host, single.store_host)


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
