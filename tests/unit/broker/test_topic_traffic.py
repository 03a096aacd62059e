"""Counts of topics and groups over the last minute, hour and day."""

import pytest

from latermq.broker.metrics import topic_traffic
from tests.support.admins import Scene

HOUR_S = 3600


def test_each_span_counts_what_lies_in_it() -> None:
    scene = Scene()
    scene.make_topic("orders", queues=1)
    traffic = scene.broker.topic_traffic
    for _ in range(2 * HOUR_S // 10):  # one message every ten seconds
        scene.send("orders")
        traffic.count_pulled("orders", "readers", 2)
        scene.clock.advance(10_000)
        traffic.sample(scene.clock.monotonic_s())
    stored = traffic.stored("orders", 1, scene.clock.monotonic_s())
    assert [span.messages for span in stored] == [6, 360, 720]
    assert [span.per_second for span in stored] == pytest.approx([0.1] * 3)
    pulled = traffic.pulled("orders", "readers", scene.clock.monotonic_s())
    assert [span.messages for span in pulled] == [12, 720, 1440]


def test_what_was_there_before_the_start_does_not_count() -> None:
    scene = Scene()
    scene.make_topic("orders", queues=1)
    scene.send("orders")
    restarted = scene.restart()
    restarted.send("orders")
    assert restarted.broker.topic_traffic.stored("orders", 1, 1.0).day.messages == 1


def test_a_topic_that_was_deleted_and_made_again_counts_from_zero() -> None:
    scene = Scene()
    scene.make_topic("orders", queues=1)
    for _ in range(5):
        scene.send("orders")
    scene.clock.advance(20_000)
    scene.service.sample()
    for work in scene.broker.topic_admin.delete("orders"):
        work()
    scene.send("orders")
    assert scene.broker.topic_traffic.stored("orders", 1, scene.clock.monotonic_s()).minute.messages == 1


def test_pairs_are_bounded_and_idle_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_traffic, "MAX_PAIRS", 2)
    scene = Scene()
    traffic = scene.broker.topic_traffic

    def pull(group: str) -> int:
        traffic.count_pulled("orders", group, 1)
        return traffic.pulled("orders", group, scene.clock.monotonic_s()).day.messages

    assert (pull("a"), pull("b"), pull("c")) == (1, 1, 0)
    for _ in range(26):
        scene.clock.advance(HOUR_S * 1000)
        traffic.sample(scene.clock.monotonic_s())
        pull("a")
    assert traffic.statistics() == {"counted_pairs": 1}
    assert pull("c") == 1
