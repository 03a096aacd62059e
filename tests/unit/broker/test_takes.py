"""Which due times a cancel and a move say that they take, so that the pipeline knows where to look."""

from collections.abc import Iterator

import pytest

from latermq.message.names import TIMER_TOPIC
from latermq.message.takes import MAX_TAKES
from latermq.model.timers import Verdict
from tests.support.brokers_in_memory import messages, send
from tests.support.pipeline.far_broker import FAR_MS, FarBroker


@pytest.fixture
def scene() -> Iterator[FarBroker]:
    scene = FarBroker()
    yield scene
    scene.close()


def last(scene: FarBroker) -> dict[str, str]:
    """The properties of the last record of the timer topic."""
    return messages(scene.broker, TIMER_TOPIC, 0)[-1].properties


def due_ms(scene: FarBroker, name: str) -> int:
    return scene.broker.pending.status("orders", name).due_ms


def test_a_cancel_names_the_due_time_of_each_timer_that_it_ends(scene: FarBroker) -> None:
    dues = []
    for delay_ms in (5_000, FAR_MS, FAR_MS, FAR_MS + 7):
        scene.schedule("one", delay_ms)
        dues.append(due_ms(scene, "one"))
    assert scene.broker.pending.cancel("orders", "one").timers == 4
    assert last(scene)["LMQ_TAKES"] == ",".join(map(str, sorted(set(dues))))


def test_a_cancel_knows_the_due_time_of_a_timer_whose_record_has_left_the_log(scene: FarBroker) -> None:
    scene.schedule("one")
    due = due_ms(scene, "one")
    scene.lose_log()
    assert scene.broker.pending.cancel("orders", "one").verdict == Verdict.CANCELLED
    assert last(scene)["LMQ_TAKES"] == str(due)


def test_a_move_takes_its_own_timer_and_not_what_earlier_moves_took(scene: FarBroker) -> None:
    scene.schedule("one")
    first = due_ms(scene, "one")
    scene.broker.pending.move("orders", "one", first + 1_000)
    assert last(scene)["LMQ_TAKES"] == str(first)
    scene.broker.pending.move("orders", "one", first + 2_000)
    assert last(scene)["LMQ_TAKES"] == str(first + 1_000)


def test_a_cancel_sent_as_a_message_says_the_same_whatever_its_sender_claims(scene: FarBroker) -> None:
    scene.schedule("one")
    due = due_ms(scene, "one")
    send(scene.broker, b"", TIMER_DELAY_MS="1000", TIMER_DEL_UNIQKEY="orders+one", LMQ_TAKES="17")
    assert last(scene)["LMQ_TAKES"] == str(due)
    send(scene.broker, b"", TIMER_DELAY_MS="1000", TIMER_DEL_UNIQKEY="orders+nobody", LMQ_TAKES="17")
    assert "LMQ_TAKES" not in last(scene)


def test_more_due_times_than_a_record_may_name_are_left_out(scene: FarBroker) -> None:
    for number in range(MAX_TAKES):
        scene.schedule("most", FAR_MS + number)
        scene.schedule("more", FAR_MS + number)
    scene.schedule("more", FAR_MS + MAX_TAKES)
    assert scene.broker.pending.cancel("orders", "most").timers == MAX_TAKES
    assert len(last(scene)["LMQ_TAKES"].split(",")) == MAX_TAKES
    assert scene.broker.pending.cancel("orders", "more").timers == MAX_TAKES + 1
    assert "LMQ_TAKES" not in last(scene)


def test_due_times_that_do_not_fit_next_to_the_properties_are_left_out(scene: FarBroker) -> None:
    for number in range(12):
        send(scene.broker, b"x", UNIQ_KEY="wide", TIMER_DELAY_MS=str(FAR_MS + number), padding="p" * 32_400)
    assert scene.broker.pending.move("orders", "wide", due_ms(scene, "wide") + 1).verdict == Verdict.MOVED
    assert "LMQ_TAKES" not in last(scene)
