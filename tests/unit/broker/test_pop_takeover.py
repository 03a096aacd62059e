"""A store of RocketMQ with popped messages: they stay in flight, with the handles that their consumers hold."""

import json
from typing import Any

import pytest

from latermq.broker.broker import Broker
from latermq.broker.pop.acknowledgements import Place
from latermq.broker.pop.takeover import ORDER_PATH
from latermq.clock import SimulatedClock
from latermq.errors import CorruptStore
from latermq.group.pop.operations import Outcome
from latermq.group.pop.snapshot_file import PATH
from latermq.message.names import REVIVE_GROUP, TIMER_TOPIC
from latermq.message.properties import encode_properties
from latermq.model.group import Group
from latermq.model.topic import Topic
from latermq.store.files.memory_disk import MemoryDisk, SimulatedCrash
from tests.golden.files import golden_json
from tests.support.brokers_in_memory import HOST, bodies, messages, open_broker, pass_time, send
from tests.support.pop_parts import GROUP, ack, expire, pop

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
HELD_MS = 60_000
ALL = [b"%d" % number for number in range(10)]


class Apache:
    """A store as RocketMQ's broker leaves it: ten messages, of which the group's offset is behind the first eight."""

    def __init__(self) -> None:
        self.disk, self.clock = MemoryDisk(), SimulatedClock()
        broker = open_broker(self.disk, self.clock)
        broker.topics.put(Topic(name="orders", read_queues=1, write_queues=1))
        broker.topics.put(Topic(name=REVIVE, read_queues=8, write_queues=8))
        broker.groups.put(Group(name=GROUP))
        for body in ALL:
            send(broker, body)
        broker.offsets.put(GROUP, "orders", 0, 8)
        self.broker = broker
        self.popped_ms = self.clock.now_ms()

    def checkpoint(self, *offsets: int, pop_ms: int = 0, **changes: Any) -> tuple[str, bytes]:
        first, pop_ms = min(offsets, default=0), pop_ms or self.popped_ms
        fields = {
            "bm": 0, "bn": "broker-a", "c": GROUP, "d": [offset - first for offset in offsets], "it": HELD_MS,
            "n": len(offsets), "pt": pop_ms, "q": 0, "ro": 0, "so": first, "sp": False, "t": "orders",
        }  # fmt: skip
        return "ck", json.dumps(fields | changes).encode()

    def ack(self, *offsets: int) -> tuple[str, bytes]:
        fields = {"ao": offsets[0], "c": GROUP, "pt": self.popped_ms, "q": 0, "so": 0, "t": "orders"}
        if len(offsets) == 1:
            return "ack", json.dumps(fields).encode()
        return "bAck", json.dumps(fields | {"ao": -1, "aol": offsets}).encode()

    def note(self, record: tuple[str, bytes]) -> None:
        """Write a record to the revive topic."""
        properties = encode_properties({"TAGS": record[0]}).encode()
        self.broker.store.writer.append(REVIVE, 3, record[1], properties, self.popped_ms, HOST)

    def schedule(self, record: tuple[str, bytes]) -> None:
        """Write a record for the revive topic that RocketMQ delivers to it when its messages are visible."""
        due_ms = str(self.popped_ms + HELD_MS)
        properties = {"TAGS": record[0], "REAL_TOPIC": REVIVE, "REAL_QID": "3", "TIMER_OUT_MS": due_ms}
        encoded = encode_properties(properties).encode()
        self.broker.store.writer.append(TIMER_TOPIC, 0, record[1], encoded, self.popped_ms, HOST)

    def stop(self) -> None:
        self.broker.pop_operations.journal.clear()  # RocketMQ has none
        self.broker.close()

    def reopen(self) -> Broker:
        return open_broker(self.disk, self.clock)


@pytest.fixture
def apache() -> Apache:
    return Apache()


def held(broker: Broker) -> list[bytes]:
    """The messages in flight."""
    found = []
    for queue in broker.in_flight.queues.values():
        stored = messages(broker, queue.topic, queue.queue_id)
        found += [one.body for one in stored if broker.in_flight.holds(queue, one.queue_offset)]
    return found


def all_popped(broker: Broker, clock: SimulatedClock) -> list[tuple[bytes, int]]:
    """Everything that the group gets from now on, with the number of failures."""
    found = []
    for _ in range(10):
        for one in pop(broker):
            found.append((one.body, one.message.reconsume_times))
            assert ack(broker, one) is Outcome.DONE
        clock.advance(HELD_MS // 2)
        expire(broker)
    return sorted(found)


def test_messages_that_were_not_acknowledged_are_delivered_again_once(apache: Apache) -> None:
    """Their records are in the revive topic or still waiting to be delivered to it."""
    apache.note(apache.checkpoint(0, 1, 2, 3))
    apache.schedule(apache.checkpoint(4, 6, 7))
    apache.schedule(apache.ack(0))
    apache.note(apache.ack(1, 2))
    apache.note(apache.ack(6))
    apache.stop()
    broker = apache.reopen()
    assert (broker.pop_takeover.taken_over, broker.pop_takeover.dropped) == (3, 0)
    assert held(broker) == [b"3", b"4", b"7"]
    assert broker.offsets.get(GROUP, "orders", 0) == 3, "pulling members continue there"
    expected = [(b"3", 1), (b"4", 1), (b"7", 1), (b"8", 0), (b"9", 0)]
    assert all_popped(broker, apache.clock) == expected
    broker.close()
    assert all_popped(apache.reopen(), apache.clock) == []


def test_consumers_that_still_hold_messages_acknowledge_them_with_their_handles(apache: Apache) -> None:
    apache.schedule(apache.checkpoint(0, 1))
    apache.stop()
    broker = apache.reopen()
    handle = Place(GROUP, "orders", 0, 1, apache.popped_ms)
    assert broker.acknowledgements.ack(handle) is Outcome.DONE
    assert broker.acknowledgements.ack(handle._replace(offset=0, pop_ms=5)) is Outcome.STALE
    broker.pop_positions.commit()
    apache.clock.advance(HELD_MS - 1)
    expire(broker)
    assert held(broker) == [b"0"], "its time is not over"
    apache.clock.advance(1)
    expire(broker)
    assert bodies(broker, f"%RETRY%{GROUP}_orders") == [b"0"]


def test_the_newest_delivery_of_a_message_counts(apache: Apache) -> None:
    """RocketMQ writes a second checkpoint when the invisible time is changed, and acknowledges the first delivery."""
    apache.schedule(apache.checkpoint(0, 1))
    apache.schedule(apache.checkpoint(0, pop_ms=apache.popped_ms + 5, sp=True))
    apache.schedule(apache.ack(0))
    apache.stop()
    broker = apache.reopen()
    assert broker.acknowledgements.ack(Place(GROUP, "orders", 0, 0, apache.popped_ms)) is Outcome.STALE
    found = all_popped(broker, apache.clock)
    assert found[:2] == [(b"0", 0), (b"1", 1)], "a suspended delivery is no attempt"


def test_checkpoints_before_the_offset_of_the_revive_group_are_done(apache: Apache) -> None:
    """But not acknowledgements: RocketMQ may have stored one before its checkpoint."""
    apache.note(apache.checkpoint(0, 1))
    apache.note(apache.ack(2))
    apache.note(apache.checkpoint(5))
    apache.broker.offsets.put(REVIVE_GROUP, REVIVE, 3, 2)
    apache.note(apache.checkpoint(2, 3))
    apache.stop()
    assert held(apache.reopen()) == [b"3"]


def test_timers_that_were_delivered_to_the_revive_topic_are_not_read_again(apache: Apache) -> None:
    apache.schedule(apache.checkpoint(0, 1))
    apache.stop()
    apache.broker = apache.reopen()  # which finds the timer
    apache.stop()
    apache.disk.remove(PATH)  # of an earlier version, which did not read these records
    apache.broker = apache.reopen()
    pass_time(apache.broker, apache.clock, HELD_MS + 5_000)
    assert len(bodies(apache.broker, REVIVE, 3)) == 1
    apache.broker.offsets.put(REVIVE_GROUP, REVIVE, 3, 0)
    apache.disk.remove(PATH)
    apache.stop()
    assert held(apache.reopen()) == []


def test_after_a_reset_the_group_gets_messages_from_its_offset_on_from_the_queue(apache: Apache) -> None:
    apache.schedule(apache.checkpoint(0, 1, 2, 3))
    apache.broker.offsets.put(GROUP, "orders", 0, 2)
    apache.stop()
    broker = apache.reopen()
    assert held(broker) == [b"0", b"1"]
    found = all_popped(broker, apache.clock)
    assert [body for body, _ in found] == ALL
    assert dict(found)[b"2"] == 0


def test_a_group_without_an_offset_continues_after_what_it_popped(apache: Apache) -> None:
    apache.broker.groups.put(Group(name="others"))
    apache.schedule(apache.checkpoint(0, 1, c="others"))
    apache.stop()
    broker = apache.reopen()
    assert [one.body for one in pop(broker, group="others")] == ALL[2:]


@pytest.mark.parametrize("changes", [{"c": "deleted"}, {"t": "deleted"}, {"q": 7}])
def test_what_no_longer_exists_is_dropped(apache: Apache, changes: dict[str, Any]) -> None:
    apache.schedule(apache.checkpoint(0, **changes))
    apache.stop()
    broker = apache.reopen()
    assert (broker.pop_takeover.taken_over, broker.pop_takeover.dropped) == (0, 1)


def test_unreadable_records_are_reported(apache: Apache) -> None:
    apache.schedule(("ck", b"3-17"))
    apache.stop()
    assert apache.reopen().pop_takeover.trouble.startswith("1 records")


def test_messages_popped_in_order_block_their_queue_and_keep_their_attempts(apache: Apache) -> None:
    """The file is one that RocketMQ's classes wrote. Messages 7 and 8 were acknowledged or not, as it says."""
    info = golden_json("pop.json")["order_info"].replace("TopicGolden@golden-group", f"orders@{GROUP}")
    start_ms = 1_700_000_000_000
    text = info.replace("{1:{", "{0:{").replace('"o":[7,1,3,4]', '"o":[4,1,3,4]')
    for old, new in ((7, 4), (8, 5), (10, 7)):
        text = text.replace(f"{old}:1,", f"{new}:1,").replace(f"{old}:1}}", f"{new}:1}}")
    text = text.replace("10:1700000005000", f"7:{apache.popped_ms + 5_000}").replace(
        str(start_ms + 1), str(apache.popped_ms)
    )
    apache.disk.replace(ORDER_PATH, text.encode())
    apache.broker.offsets.put(GROUP, "orders", 0, 4)
    apache.stop()
    broker = apache.reopen()
    assert held(broker) == [b"4", b"7", b"8"], "5 is acknowledged, 6 is filtered"
    assert broker.offsets.get(GROUP, "orders", 0) == 4
    assert pop(broker, is_ordered=True) == [], "it is blocked"
    assert [one.body for one in pop(broker, is_ordered=True, attempt="second")] == [b"4", b"7", b"8"]
    apache.clock.advance(HELD_MS)
    again = pop(broker, is_ordered=True, count=32)
    assert [one.body for one in again] == [b"4", b"7", b"8"]
    [queue] = broker.in_flight.queues.values()
    counts = {offset: broker.in_flight.rows.count[row] for offset, row in queue.singles.items()}
    assert counts == {4: 2, 7: 2, 8: 1}
    for one in again:
        assert ack(broker, one) is Outcome.DONE
    assert [one.body for one in pop(broker, is_ordered=True)] == [b"9"]


def test_an_ordered_group_whose_offset_was_reset_continues_there(apache: Apache) -> None:
    info = {"popTime": apache.popped_ms, "i": HELD_MS, "o": [4, 1]}
    table = {"table": {f"orders@{GROUP}": {"0": info}}}
    apache.disk.replace(ORDER_PATH, json.dumps(table).encode())
    apache.broker.offsets.put(GROUP, "orders", 0, 2)
    apache.stop()
    broker = apache.reopen()
    assert [one.body for one in pop(broker, is_ordered=True)] == ALL[2:]


def test_an_order_file_that_does_not_parse_loses_nothing(apache: Apache) -> None:
    apache.disk.replace(ORDER_PATH, b"{")
    apache.broker.offsets.put(GROUP, "orders", 0, 4)
    apache.stop()
    broker = apache.reopen()
    assert ORDER_PATH in broker.pop_takeover.trouble
    assert [one.body for one in pop(broker, is_ordered=True)] == ALL[4:]


def test_a_store_with_popped_messages_in_a_key_value_store_is_refused(apache: Apache) -> None:
    apache.disk.replace("kvStore/CURRENT", b"MANIFEST-000005\n")
    apache.stop()
    with pytest.raises(CorruptStore, match=r"kvStore.*exportPopRecord"):
        apache.reopen()
    apache.disk = apache.disk.after_process_crash()
    apache.disk.remove("kvStore/CURRENT")
    apache.reopen()


@pytest.mark.parametrize("halfway", [False, True])
def test_the_first_start_may_die_anywhere(halfway: bool) -> None:
    deaths = 0
    for calls in range(1, 400):
        apache = Apache()
        apache.note(apache.checkpoint(0, 1, 2, 3))
        apache.schedule(apache.ack(1, 2))
        apache.stop()
        apache.disk.crash_after(calls, halfway=halfway)
        try:
            broker = apache.reopen()
            expire(broker)
        except SimulatedCrash:
            deaths += 1
        else:
            break
        apache.disk = apache.disk.after_process_crash()
        broker = apache.reopen()
        assert held(broker) == [b"0", b"3"], f"after a death behind {calls} calls"
        assert all_popped(broker, apache.clock) == [(b"0", 1), (b"3", 1), (b"8", 0), (b"9", 0)]
    assert deaths > 5
