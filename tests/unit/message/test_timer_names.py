"""Names of timers as cancels carry them: what they can mean, and what it costs to find out."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from latermq.broker.broker import Broker
from latermq.message.names import MAX_RETRY_TOPIC_CHARS
from latermq.message.timer_name import meanings, names_of, timer_name
from latermq.model.timers import Verdict
from latermq.timer.far.far_names import FarNames
from tests.support.brokers_in_memory import bodies, send
from tests.support.pipeline.far_broker import FAR_MS, FarBroker
from tests.unit.timer.test_timers import ENGINES, Scene


@pytest.fixture(params=ENGINES)
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    scene = Scene(request.param)
    yield scene
    scene.broker.timers.engine.close()


class Work:
    """How often a broker went to the log and to the key index."""

    def __init__(self, broker: Broker, patch: pytest.MonkeyPatch) -> None:
        self.records = self.searches = 0
        log, index = broker.store.log, broker.store.index
        read_record, find = log.read_record, index.find

        def counted_read(*given: int) -> bytes | None:
            self.records += 1
            return read_record(*given)

        def counted_find(*given: object) -> Iterator[int]:
            self.searches += 1
            return find(*given)  # type: ignore[arg-type]

        patch.setattr(log, "read_record", counted_read)
        patch.setattr(index, "find", counted_find)


# What a name means


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("orders+u1", [("orders", "u1")]),
        ("orders+u+1", [("orders", "u+1")]),
        ("orders+", []),
        ("orders", []),
        ("", []),
        ("+u1", []),
        ("no topic+u1", []),
        ("%RETRY%g+u1", [("%RETRY%g", "u1")]),
        ("%RETRY%g+orders+u1", [("%RETRY%g", "orders+u1"), ("%RETRY%g+orders", "u1")]),
        ("%RETRY%g+orders+u+1", [("%RETRY%g", "orders+u+1"), ("%RETRY%g+orders", "u+1")]),
        ("%RETRY%g+no topic+u1", [("%RETRY%g", "no topic+u1")]),
        ("t" * 127 + "+u", [("t" * 127, "u")]),
        ("t" * 128 + "+u", []),
        ("+" * 5_000, []),
        ("a+" * 5_000, [("a", "a+" * 4_999)]),
    ],
)
def test_a_name_is_split_where_a_topic_ends(name: str, found: list[tuple[str, str]]) -> None:
    assert names_of(name) == found
    assert all(timer_name(*one) == name for one in found)


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("u1", ["orders+u1"]),
        ("orders+u1", ["orders+u1", "orders+orders+u1"]),
        ("other+u1", ["orders+other+u1", "other+u1"]),
        ("a b+u1", ["orders+a b+u1"]),
        ("+" * 5_000, ["orders+" + "+" * 5_000]),
    ],
)
def test_a_cancel_means_a_name_with_its_topic_or_a_key_of_the_topic_it_was_sent_to(key: str, names: list[str]) -> None:
    assert meanings(key, "orders") == names


# Cancels of keys that hold the separator


@pytest.mark.parametrize("key", ["a+b", "2026-11-16T00:00+08:00", "orders+1", "+", "++", "a b+c", "%RETRY%g+x+y"])
@pytest.mark.parametrize("with_topic", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_cancel_by_property_takes_a_key_that_holds_the_separator(
    scene: Scene, key: str, with_topic: bool, restarted: bool
) -> None:
    scene.send(b"cancelled", 5_000, UNIQ_KEY=key)
    scene.send(b"stays", 5_000, UNIQ_KEY=f"other {key}")
    scene.send(b"cancel", 5_000, TIMER_DEL_UNIQKEY=f"orders+{key}" if with_topic else key, UNIQ_KEY="c")
    assert scene.broker.pending.status("orders", key).verdict == Verdict.CANCELLED
    if restarted:
        scene.restart()
    assert scene.broker.pending.count() == 1
    scene.pass_time(10_000)
    assert bodies(scene.broker) == [b"stays"]
    assert scene.broker.pending.count() == 0


def test_a_cancel_that_can_mean_two_timers_takes_that_of_the_topic_it_was_sent_to(scene: Scene) -> None:
    scene.send(b"by its key", 5_000, UNIQ_KEY="other+1")
    send(scene.broker, b"by its name", topic="other", UNIQ_KEY="1", TIMER_DELAY_MS="5000")
    send(scene.broker, b"by its name too", topic="other", UNIQ_KEY="2", TIMER_DELAY_MS="5000")
    for name in ("other+1", "other+2", "other+1"):
        scene.send(b"cancel", 5_000, TIMER_DEL_UNIQKEY=name, UNIQ_KEY="c")
    scene.restart()
    assert scene.broker.pending.status("orders", "other+1").verdict == Verdict.CANCELLED
    assert scene.broker.pending.status("other", "1").verdict == Verdict.PENDING
    scene.pass_time(10_000)
    assert bodies(scene.broker) == []
    assert bodies(scene.broker, "other") == [b"by its name"]
    assert scene.broker.pending.count() == 0


@pytest.mark.parametrize("key", ["a+b", "orders+1"])
@pytest.mark.parametrize("gone_first", [False, True])
def test_sparks_roll_and_the_names_of_far_timers_know_such_a_cancel(key: str, gone_first: bool) -> None:
    far = FarBroker()
    far.schedule(key)
    far.schedule("b")
    if gone_first:
        far.lose_log()
    send(far.broker, b"cancel", TIMER_DELAY_MS=str(FAR_MS), TIMER_DEL_UNIQKEY=key, UNIQ_KEY="c")
    far.lose_log()  # with the cancel in it
    assert far.broker.pending.status("orders", "b").verdict == Verdict.PENDING
    assert far.broker.pending.status("orders", key).verdict in (Verdict.CANCELLED, Verdict.NOT_FOUND)
    far.pass_time(FAR_MS)
    assert far.arrived() == [b"b"]
    assert far.broker.pending.count() == 0
    far.close()


# What a name costs


@pytest.mark.parametrize("key", ["+" * 5_000, "a+" * 5_000, "%RETRY%g+" + "x+" * 5_000])
def test_a_name_of_many_separators_costs_no_more_than_any_other(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    def searches(name: str) -> int:
        with monkeypatch.context() as patch:
            work = Work(scene.broker, patch)
            scene.send(b"cancel", 5_000, TIMER_DEL_UNIQKEY=name, UNIQ_KEY="c")
            return work.searches

    assert searches(key) <= 4 * searches("u1")
    with monkeypatch.context() as patch:
        work = Work(scene.broker, patch)
        scene.broker.pending.cancel("orders", key)
        assert work.searches <= 16


def test_such_a_name_costs_a_start_no_more_either(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("+" * 5_000, "a+" * 5_000):
        scene.send(b"timer", 5_000, UNIQ_KEY=name)
        scene.send(b"cancel", 5_000, TIMER_DEL_UNIQKEY=name, UNIQ_KEY="c")
    work = Work(scene.broker, monkeypatch)
    scene.broker.replay.run()
    assert work.searches <= 32


def test_such_a_name_costs_the_names_of_far_timers_no_more_either(monkeypatch: pytest.MonkeyPatch) -> None:
    far = FarBroker()
    far.schedule("b")
    send(far.broker, b"cancel", TIMER_DELAY_MS=str(FAR_MS), TIMER_DEL_UNIQKEY="+" * 5_000, UNIQ_KEY="c")
    looked_up: list[bytes] = []
    find = FarNames._find

    def counted(names: FarNames, keys: Iterable[bytes]) -> dict[bytes, Any]:
        looked_up.extend(keys := list(keys))
        return find(names, keys)

    monkeypatch.setattr(FarNames, "_find", counted)
    far.lose_log()
    assert 1 <= len(looked_up) <= 4
    far.close()


def test_the_longest_topic_ends_the_search_for_one() -> None:
    assert names_of("%RETRY%" + "g" * MAX_RETRY_TOPIC_CHARS + "+u") == []
