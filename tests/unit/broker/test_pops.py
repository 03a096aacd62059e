"""POP consumption in the broker: retries, dead letters, order, resets, deletions, retention and limits."""

import msgspec
import pytest

from latermq.broker.broker import Broker
from latermq.broker.pop.acknowledgements import Place
from latermq.broker.pop.pop_request import PopRequest
from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig, Config, Duration, PopConfig, Size
from latermq.errors import IllegalMessage, InvalidParameter, NoPermission, PollingFull, ServiceUnavailable, StoreError
from latermq.group.pop.handles import pop_retry_topic
from latermq.group.pop.operations import Outcome
from latermq.message.names import POP_TOPIC
from latermq.model.group import Group
from latermq.model.retry import SendBack
from latermq.model.topic import Topic
from latermq.store.files.memory_disk import MemoryDisk
from latermq.timer.steps import Steps
from tests.support.brokers_in_memory import STORE, bodies, messages, open_broker, pass_time, send
from tests.support.pop_parts import GROUP, Held, ack, change, expire, pop

MINUTE_MS = 60_000
RETRIES = pop_retry_topic(GROUP, "orders")
DEAD = f"%DLQ%{GROUP}"


def scene(count: int = 0, *, queues: int = 1, group: Group | None = None) -> tuple[Broker, SimulatedClock]:
    clock = SimulatedClock()
    broker = open_broker(MemoryDisk(), clock)
    broker.topics.put(Topic(name="orders", read_queues=queues, write_queues=queues))
    if group is not None:
        broker.groups.put(group)
    for number in range(count):
        send(broker, b"%d" % number, queue_id=number % queues)
    return broker, clock


def run_steps(steps: Steps[object]) -> None:
    for _ in steps:
        pass


def texts(held: list[Held]) -> list[bytes]:
    return sorted(one.body for one in held)


def offset_of(broker: Broker, topic: str = "orders", queue_id: int = 0) -> int:
    return broker.offsets.get(GROUP, topic, queue_id)


def test_pops_after_notifications_take_turns_among_the_queues() -> None:
    broker, _ = scene(128, queues=2)
    queues = []
    for _ in range(4):
        assert broker.pops.has_messages(PopRequest(GROUP, "orders", -1, 1, 0))
        queues += sorted({one.place.queue_id for one in pop(broker)})
    assert queues == [0, 1, 0, 1]


def test_notifications_of_a_wide_topic_look_at_all_its_queues() -> None:
    broker = open_broker(MemoryDisk(), SimulatedClock(), settings=BrokerConfig(max_topic_queues=10_000))
    broker.topics.put(Topic(name="orders", read_queues=10_000, write_queues=10_000))
    broker.groups.require(GROUP, b"")
    send(broker, b"far", queue_id=9_000)
    found = [broker.pops.has_messages(PopRequest(GROUP, "orders", -1, 1, 0)) for _ in range(4)]
    assert found == [False, False, True, False]


# Retries and dead letters


def test_an_expired_message_is_in_the_retry_topic_once_with_one_more_attempt() -> None:
    broker, clock = scene(1)
    pop(broker)
    clock.advance(MINUTE_MS - 1)
    expire(broker)
    assert bodies(broker, RETRIES) == []
    clock.advance(1)
    expire(broker)
    expire(broker)
    (copy,) = messages(broker, RETRIES)
    assert (copy.body, copy.reconsume_times) == (b"0", 1)
    assert copy.properties["ORIGIN_GROUP"] == GROUP
    assert copy.properties["1ST_POP_TIME"] == "1800000000000"
    assert texts(pop(broker)) == [b"0"]


def test_a_message_returned_with_suspend_counts_no_attempt() -> None:
    broker, _ = scene(1)
    change(broker, pop(broker)[0], 0, is_suspended=True)
    expire(broker)
    assert messages(broker, RETRIES)[0].reconsume_times == 0


def test_the_properties_of_an_earlier_delay_do_not_delay_a_retry() -> None:
    broker, clock = scene()
    send(broker, b"late", DELAY="1")
    pass_time(broker, clock, 2_000)
    pop(broker, invisible_ms=0)
    expire(broker)
    (copy,) = messages(broker, RETRIES)
    assert "DELAY" not in copy.properties
    assert not [name for name in copy.properties if name.startswith("LMQ_")]


def test_the_broker_buries_a_message_after_the_group_s_last_attempt() -> None:
    broker, clock = scene(1, group=Group(name=GROUP, max_retries=2))
    for attempt in range(3):
        (held,) = pop(broker, invisible_ms=10)
        assert held.message.reconsume_times == attempt
        clock.advance(10)
        expire(broker)
    assert pop(broker) == []
    (dead,) = messages(broker, DEAD)
    assert (dead.body, dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (b"0", 3, "orders")
    assert ack(broker, held) is Outcome.STALE


def test_a_full_topic_table_keeps_messages_in_flight_until_there_is_room() -> None:
    broker, _ = scene(1)
    pop(broker, invisible_ms=0)
    limit = len(broker.topics.table.topics)
    broker.topics._config = msgspec.structs.replace(broker.topics._config, max_topics=limit)
    expire(broker)
    assert "broker.max_topics" in broker.pop_expiry.failure
    assert broker.in_flight.held == 1
    broker.topics._config = msgspec.structs.replace(broker.topics._config, max_topics=limit + 1)
    expire(broker)
    assert bodies(broker, RETRIES) == [b"0"]


def test_a_group_whose_retries_cannot_be_stored_does_not_hold_up_others() -> None:
    broker, _ = scene()
    for number in range(600):
        send(broker, b"%d" % number)
    for _ in range(20):
        pop(broker, group="stuck", invisible_ms=0)
    broker.topics.put(Topic(name=pop_retry_topic("stuck", "orders"), permissions=4))
    expire(broker)
    assert "not writable" in broker.pop_expiry.failure
    pop(broker, invisible_ms=0, count=1)
    for _ in range(3):
        broker.pop_expiry.run()
    assert bodies(broker, RETRIES) == [b"0"]


def test_what_consumers_sent_back_is_popped_with_its_attempts() -> None:
    broker, clock = scene(1)
    position = messages(broker, "orders")[0].physical_offset
    broker.retries.send_back(SendBack(group=GROUP, physical_offset=position, delay_level=0, max_retries=None))
    pass_time(broker, clock, 20_000)
    assert len(bodies(broker, f"%RETRY%{GROUP}")) == 1
    assert texts(pop(broker)) == [b"0"]
    expire(broker)
    (held,) = pop(broker)
    assert held.message.reconsume_times == 1
    assert held.place.topic == RETRIES
    assert ack(broker, held) is Outcome.DONE
    assert pop(broker) == []


def test_a_retry_topic_with_two_meanings_is_told_apart_by_its_group() -> None:
    broker, _ = scene()
    broker.topics.put(Topic(name="c", read_queues=1, write_queues=1))
    broker.topics.put(Topic(name="b_c", read_queues=1, write_queues=1))
    send(broker, b"1", "c")
    send(broker, b"2", "b_c")
    pop(broker, "c", "a_b", invisible_ms=0)
    pop(broker, "b_c", "a", invisible_ms=0)
    expire(broker)
    assert {
        (one.properties["ORIGIN_GROUP"], one.properties["RETRY_TOPIC"]) for one in messages(broker, "%RETRY%a_b_c")
    } == {
        ("a_b", "c"),
        ("a", "b_c"),
    }
    assert texts(pop(broker, "c", "a_b")) == [b"1"]
    assert texts(pop(broker, "b_c", "a")) == [b"2"]


# Positions


def test_the_group_s_offset_is_its_first_message_that_is_not_acknowledged() -> None:
    broker, _ = scene(3)
    held = pop(broker)
    assert offset_of(broker) == 0
    ack(broker, held[0])
    ack(broker, held[2])
    assert offset_of(broker) == 1
    ack(broker, held[1])
    assert offset_of(broker) == 3


def test_filtered_messages_are_skipped_for_good_and_after_a_restart() -> None:
    clock, disk = SimulatedClock(), MemoryDisk()
    broker = open_broker(disk, clock)
    for number in range(6):
        send(broker, b"%d" % number, TAGS="odd" if number % 2 else "even")
    held = pop(broker, tags="odd")
    assert texts(held) == [b"1", b"3", b"5"]
    for one in held:
        ack(broker, one)
    again = open_broker(disk.after_process_crash(), clock)
    assert pop(again) == []
    assert offset_of(again) == 6


def test_a_new_group_begins_where_it_wants_to() -> None:
    broker, _ = scene(3)
    broker.progress._recent_log = Size(0)
    assert texts(pop(broker, group="all")) == [b"0", b"1", b"2"]
    assert texts(pop(broker, group="last", from_end=True)) == [b"2"]


def test_a_reset_forgets_what_is_in_flight_and_refuses_its_handles() -> None:
    broker, _ = scene(3)
    held = pop(broker)
    ack(broker, held[0])
    reset = broker.group_admin.reset_offsets(GROUP, "orders", timestamp_ms=0, queue_id=-1, offset=None, force=True)
    run_steps(reset)
    again = pop(broker)
    assert texts(again) == [b"0", b"1", b"2"]
    assert ack(broker, held[1]) is Outcome.STALE
    assert ack(broker, again[1]) is Outcome.DONE


def test_an_operator_sets_the_offset_back_while_no_consumer_is_connected() -> None:
    broker, _ = scene(3)
    for held in pop(broker):
        ack(broker, held)
    broker.progress.commit(GROUP, "orders", 0, 1)
    assert offset_of(broker) == 3, "a consumer that pulls commits an old offset"
    broker.progress.commit(GROUP, "orders", 0, 1, is_reset=True)
    assert texts(pop(broker)) == [b"1", b"2"]


def test_a_commit_of_a_pulling_consumer_never_skips_messages_in_flight() -> None:
    broker, _ = scene(3)
    held = pop(broker, count=1)
    broker.progress.commit(GROUP, "orders", 0, 3)
    assert offset_of(broker) == 0
    assert pop(broker) == []
    ack(broker, held[0])
    assert offset_of(broker) == 3


def test_a_topic_made_again_has_nothing_in_flight_and_old_handles_do_not_hit_its_messages() -> None:
    clock, disk = SimulatedClock(), MemoryDisk()
    broker = open_broker(disk, clock)
    send(broker, b"old")
    (old,) = pop(broker)
    for work in broker.topic_admin.delete("orders"):
        work()
    assert broker.in_flight.held == 0
    send(broker, b"new")
    broker = open_broker(disk.after_process_crash(), clock)
    assert ack(broker, old) is not Outcome.DONE
    (new,) = pop(broker)
    assert new.place.pop_ms != old.place.pop_ms
    assert ack(broker, old) is Outcome.STALE
    assert ack(broker, new) is Outcome.DONE


def test_a_topic_with_fewer_queues_returns_what_is_in_flight_through_retries() -> None:
    broker, clock = scene(4, queues=4)
    held = pop(broker)
    broker.topics.put(Topic(name="orders", read_queues=1, write_queues=1))
    ack(broker, next(one for one in held if one.place.queue_id == 2))
    clock.advance(MINUTE_MS)
    expire(broker)
    assert len(pop(broker)) == 3


def test_a_deleted_group_has_nothing_in_flight_also_after_a_restart() -> None:
    clock, disk = SimulatedClock(), MemoryDisk()
    broker = open_broker(disk, clock)
    send(broker, b"one")
    (held,) = pop(broker)
    broker.group_admin.delete(GROUP, clean_offsets=True)
    broker = open_broker(disk.after_process_crash(), clock)
    assert broker.in_flight.held == 0
    assert broker.acknowledgements.ack(held.place) is Outcome.UNKNOWN
    assert texts(pop(broker)) == [b"one"]


def test_retention_copies_messages_in_flight_instead_of_waiting_for_them() -> None:
    clock = SimulatedClock()
    store = msgspec.structs.replace(STORE, retention=Duration(1_000))
    broker = open_broker(MemoryDisk(), clock, store=store)
    send(broker, b"held")
    (held,) = pop(broker, invisible_ms=100 * 3_600_000)
    for _ in range(20):
        send(broker, bytes(30_000), "other")
    clock.advance(5_000)
    send(broker, b"new", "other")
    broker.pop_journal._snapshot._max_pinned_bytes = 0  # the journal itself keeps no segment
    broker.store.save(broker.store.plan_checkpoint())
    assert broker.retention.run() == []
    broker.pop_expiry.release_log()
    broker.store.save(broker.store.plan_checkpoint())
    assert broker.retention.run()
    (copy,) = messages(broker, RETRIES)
    assert (copy.body, copy.reconsume_times) == (b"held", 0)
    assert ack(broker, held) is Outcome.STALE
    assert texts(pop(broker)) == [b"held"]


# In order


def ordered() -> Group:
    return Group(name=GROUP, is_ordered=True, max_retries=1)


def test_a_queue_in_order_is_blocked_until_its_batch_is_acknowledged() -> None:
    broker, _ = scene(4, group=ordered())
    held = pop(broker, count=2)
    assert pop(broker) == []
    ack(broker, held[0])
    assert pop(broker) == []
    ack(broker, held[1])
    assert texts(pop(broker)) == [b"2", b"3"]


def test_the_same_attempt_gets_the_same_batch_without_counting() -> None:
    broker, clock = scene(3, group=ordered())
    pop(broker, count=2, attempt="a")
    for _ in range(5):
        again = pop(broker, count=2, attempt="a")
        assert [one.body for one in again] == [b"0", b"1"]
    ack(broker, again[0])
    clock.advance(MINUTE_MS)
    expire(broker)
    assert bodies(broker, DEAD) == []
    assert [one.body for one in pop(broker, count=2, attempt="b")] == [b"1"]


def test_in_order_a_message_is_buried_after_its_last_attempt_and_the_queue_goes_on() -> None:
    broker, clock = scene(2, group=ordered())
    for _ in range(2):
        assert texts(pop(broker, count=1, invisible_ms=10)) == [b"0"]
        clock.advance(10)
    assert pop(broker) == [], "the message has no attempt left"
    expire(broker)
    (dead,) = messages(broker, DEAD)
    assert (dead.body, dead.reconsume_times) == (b"0", 2)
    assert texts(pop(broker)) == [b"1"]
    assert broker.topics.find(RETRIES) is None


def test_a_group_that_is_no_longer_ordered_gets_the_rest_of_its_batch() -> None:
    broker, clock = scene(2, group=ordered())
    pop(broker, invisible_ms=10)
    broker.groups.put(Group(name=GROUP))
    assert pop(broker) == []
    clock.advance(10)
    assert texts(pop(broker)) == [b"0", b"1"]


# Limits and refusals


def test_pops_are_refused_above_disk_high_and_acknowledgements_never() -> None:
    broker, clock = scene(2)
    held = pop(broker, count=1)
    broker.gate._store = type("Full", (), {"used_ratio": lambda self: 0.99})()
    broker.gate.check_disk()
    with pytest.raises(ServiceUnavailable):
        pop(broker)
    assert change(broker, held[0], 1_000).outcome is Outcome.DONE
    assert ack(broker, held[0]) is Outcome.STALE
    clock.advance(1_000)
    expire(broker)
    assert broker.in_flight.held == 1, "it stays in flight until there is space"
    broker.gate.refusal = broker.gate._retry_refusal = None
    expire(broker)
    assert texts(pop(broker)) == [b"0", b"1"]


def test_a_journal_without_space_keeps_the_operations() -> None:
    clock, disk = SimulatedClock(), MemoryDisk()
    broker = open_broker(disk, clock)
    send(broker, b"one")
    (held,) = pop(broker)

    broker.acknowledgements.ack(held.place)
    append = broker.store.writer.append
    broker.store.writer.append = refuse  # type: ignore[method-assign, assignment]
    assert isinstance(broker.pop_positions.try_commit(), StoreError)
    broker.store.writer.append = append  # type: ignore[method-assign]
    assert broker.pop_positions.try_commit() is None
    assert open_broker(disk.after_process_crash(), clock).in_flight.held == 0


def refuse(*_: object, **__: object) -> None:
    raise StoreError("injected")


def test_messages_in_flight_are_bounded_per_queue_and_in_all() -> None:
    clock = SimulatedClock()
    config = Config(store=STORE, pop=PopConfig(max_in_flight=5, max_in_flight_per_queue=3))
    broker = Broker(config, MemoryDisk(), clock, host="127.0.0.1", port=1, new_store_id="s" * 32)
    for number in range(12):
        send(broker, b"%d" % number, queue_id=number % 2)
    assert len(pop(broker, queue_id=0)) == 3
    with pytest.raises(PollingFull):
        pop(broker, queue_id=0)
    rest = pop(broker)
    assert len(rest) == 2
    with pytest.raises(PollingFull):
        pop(broker)
    ack(broker, rest[0])
    assert len(pop(broker)) == 1


def test_a_full_table_of_offsets_refuses_a_pop_before_anything_is_in_flight() -> None:
    clock = SimulatedClock()
    config = Config(store=STORE, broker=BrokerConfig(max_offsets=1))
    broker = Broker(config, MemoryDisk(), clock, host="127.0.0.1", port=1, new_store_id="s" * 32)
    for queue_id in range(3):
        send(broker, b"x", queue_id=queue_id)
    with pytest.raises(NoPermission):
        pop(broker)
    assert broker.in_flight.held == 0
    assert broker.pop_positions.try_commit() is None
    assert len(pop(broker, queue_id=next(iter(broker.in_flight.queues))[2])) == 1


@pytest.mark.parametrize("queue_id", [-2, 1, 1 << 31 - 1])
def test_a_queue_that_the_topic_does_not_have_is_refused(queue_id: int) -> None:
    broker, _ = scene(1)
    with pytest.raises(InvalidParameter):
        broker.pops.check_topic("orders", queue_id)


@pytest.mark.parametrize("topic", [POP_TOPIC, "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"])
def test_topics_of_the_broker_cannot_be_popped(topic: str) -> None:
    broker, _ = scene(1)
    pop(broker)
    broker.topics.table.topics.setdefault(topic, Topic(name=topic))
    with pytest.raises(NoPermission):
        broker.pops.check_topic(topic, -1)


def test_forged_handles_change_nothing() -> None:
    broker, _ = scene(2)
    (held, _) = pop(broker)
    group, topic, queue_id, offset, pop_ms = held.place
    far = (1 << 63) - 1
    forged = [
        Place(group, topic, queue_id, offset, pop_ms + 1),
        Place(group, topic, queue_id, far, pop_ms),
        Place(group, topic, queue_id, -1, pop_ms),
        Place(group, topic, queue_id, -far, far),
        Place(group, topic, queue_id, offset + 32, pop_ms),
        Place("others", topic, queue_id, offset, pop_ms),
    ]
    for place in forged:
        assert broker.acknowledgements.ack(place) is not Outcome.DONE
        assert broker.acknowledgements.change(place, far, is_suspended=True).outcome is not Outcome.DONE
        assert broker.acknowledgements.bury(place, "") is not Outcome.DONE
        assert broker.acknowledgements.ack_all(place[:3], place.offset, place.pop_ms, ((0, 1), (far, 1))) == 0
        assert broker.acknowledgements.ack_each([place]) != [Outcome.DONE]
    assert broker.in_flight.held == 2
    with pytest.raises(IllegalMessage):
        broker.acknowledgements.find(Place("others", topic, -5, offset, pop_ms))
    assert change(broker, held, far).outcome is Outcome.DONE
    broker.pop_expiry.run()


def test_a_step_back_of_the_clock_makes_no_message_visible_early_and_no_handle_valid_again() -> None:
    broker, clock = scene(2)
    first = pop(broker, count=1)[0]
    clock.step(-3_600_000)
    expire(broker)
    assert broker.in_flight.held == 1
    second = pop(broker, count=1)[0]
    assert ack(broker, Held(second.message, second.place._replace(pop_ms=first.place.pop_ms))) is not Outcome.DONE
    assert ack(broker, first) is Outcome.DONE
    assert ack(broker, second) is Outcome.DONE


def test_the_journal_cannot_be_sent_to_or_deleted() -> None:
    broker, _ = scene(1)
    pop(broker)
    with pytest.raises(NoPermission):
        send(broker, b"forged", POP_TOPIC)
    with pytest.raises(InvalidParameter):
        broker.topic_admin.delete(POP_TOPIC)
    assert POP_TOPIC not in broker.topics.names()
