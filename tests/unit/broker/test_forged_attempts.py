"""Messages whose senders set the number of failed attempts to any number that a record can have."""

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.group.pop.operations import Outcome
from latermq.group.retry_backoff import RETRY_LEVELS
from latermq.model.group import Group
from latermq.model.retry import SendBack
from latermq.model.topic import Topic
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import HOST, messages, open_broker, pass_time
from tests.support.pop_parts import GROUP, expire, pop

MOST, LEAST = (1 << 31) - 1, -(1 << 31)
DEAD = f"%DLQ%{GROUP}"


def scene(times: int, group: Group | None = None) -> tuple[Broker, SimulatedClock]:
    clock = SimulatedClock()
    broker = open_broker(MemoryDisk(), clock)
    broker.topics.put(Topic(name="orders", read_queues=1, write_queues=1))
    broker.groups.put(group or Group(name=GROUP))
    broker.writer.send("orders", 0, b"forged", "", 1_700_000_000_000, HOST, reconsume_times=times)
    broker.writer.send("orders", 0, b"next", "", 1_700_000_000_000, HOST)
    return broker, clock


@pytest.mark.parametrize("times", [MOST, MOST - 1])
def test_a_popped_message_with_the_most_failures_is_buried_and_others_go_on(times: int) -> None:
    broker, clock = scene(times)
    pop(broker, invisible_ms=1_000)
    clock.advance(1_000)
    expire(broker)
    assert [(one.body, one.reconsume_times) for one in messages(broker, DEAD)] == [(b"forged", MOST)]
    assert [one.body for one in pop(broker)] == [b"next"]


def test_a_popped_message_with_the_most_failures_can_be_buried() -> None:
    broker, _ = scene(MOST)
    assert broker.acknowledgements.bury(pop(broker)[0].place, "enough") is Outcome.DONE
    assert messages(broker, DEAD)[0].reconsume_times == MOST


def test_a_popped_message_with_the_most_failures_goes_back_uncounted() -> None:
    broker, _ = scene(MOST)
    held = pop(broker)[0]
    broker.acknowledgements.change(held.place, 0, is_suspended=True)
    expire(broker)
    assert [one.message.reconsume_times for one in pop(broker)] == [MOST]


@pytest.mark.parametrize("times", [-1, -5, LEAST])
def test_a_negative_number_is_no_failure(times: int) -> None:
    broker, clock = scene(times)
    pop(broker, invisible_ms=1_000)
    clock.advance(1_000)
    expire(broker)
    assert [one.message.reconsume_times for one in pop(broker)] == [1, 1]


def send_back(broker: Broker) -> None:
    offset = messages(broker)[0].physical_offset
    broker.retries.send_back(SendBack(group=GROUP, physical_offset=offset, delay_level=0))


def test_a_message_with_the_most_failures_that_is_sent_back_is_buried() -> None:
    broker, _ = scene(MOST)
    send_back(broker)
    assert [one.reconsume_times for one in messages(broker, DEAD)] == [MOST]


@pytest.mark.parametrize("times", [-1, -5, LEAST])
@pytest.mark.parametrize("attributes", [{}, {RETRY_LEVELS: "10s 2h"}])
def test_a_message_with_a_negative_number_that_is_sent_back_is_retried_after_the_first_pause(
    times: int, attributes: dict[str, str]
) -> None:
    broker, clock = scene(times, Group(name=GROUP, attributes=attributes))
    send_back(broker)
    pass_time(broker, clock, 11_000)
    assert [one.reconsume_times for one in messages(broker, f"%RETRY%{GROUP}")] == [1]
