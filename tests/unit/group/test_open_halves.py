"""Open halves: who is asked when, how often, and what ends a half."""

import pytest

from latermq.clock import SimulatedClock
from latermq.errors import StoreError
from latermq.group.transactions.half_topic import HalfTopic, TransactionState
from latermq.group.transactions.open_halves import (
    CHECK_IMMUNITY_S,
    CheckSchedule,
    Half,
    OpenHalves,
    TooManyHalves,
    half_of,
    reference_to,
)
from latermq.message.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_CHECK_TOPIC
from latermq.message.properties import encode_properties
from latermq.store.checkpoint import PATH as CHECKPOINT
from latermq.store.checkpoint import load_checkpoint
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.log_writer import Appended, Draft
from latermq.store.message_store import MessageStore
from tests.support.stores import HOST, SMALL, bodies

NOW_MS = 1_800_000_000_000
SCHEDULE = CheckSchedule()


def half(number: int = 0, key: str = "", group: str = "producers", immunity: str = "") -> Half:
    own = {CHECK_IMMUNITY_S: immunity} if immunity else {}
    encoded = encode_properties({"UNIQ_KEY": key or f"key {number}", "PGROUP": group, **own}).encode()
    return half_of(number * 100, number, 100, NOW_MS, encoded, SCHEDULE)


def asked(halves: OpenHalves, now_ms: int) -> list[int]:
    return [one.queue_offset for one in halves.due(now_ms)[0]]


# The schedule


def test_a_producer_is_asked_after_six_seconds_and_then_every_thirty() -> None:
    halves, one = OpenHalves(), half()
    halves.add(one)
    assert halves.next_check_ms() == NOW_MS + 6_000
    assert asked(halves, NOW_MS + 5_999) == []
    at_ms = NOW_MS + 6_000
    for _ in range(15):
        assert asked(halves, at_ms - 1) == []
        assert asked(halves, at_ms) == asked(halves, at_ms) == [0], "until it is reported"
        halves.note_asked(one, at_ms)
        at_ms += 30_000
    assert halves.due(at_ms - 1) == ([], [])
    assert halves.due(at_ms) == ([], [one]), "after 15 checks it is given up"


@pytest.mark.parametrize(
    ("value", "after_ms"), [("20", 20_000), ("0", 0), ("-1", 6_000), ("x", 6_000), ("9" * 9, 259_200_000)]
)
def test_a_message_may_say_itself_after_which_time_its_producer_is_asked(value: str, after_ms: int) -> None:
    assert half(immunity=value).first_after_ms == after_ms


def test_a_half_that_has_ended_is_not_asked_for() -> None:
    halves, one, other = OpenHalves(), half(1), half(2)
    halves.add(one)
    halves.add(other)
    halves.end(one)
    assert asked(halves, NOW_MS + 6_000) == [2]
    assert halves.find(100, 1) is None
    assert halves.by_key("key 1") == []
    assert (len(halves), halves.first_offset()) == (1, 200)


def test_checks_without_a_connected_producer_do_not_count_and_are_made_when_one_connects() -> None:
    halves, one, other = OpenHalves(), half(1), half(2, group="others")
    halves.add(one)
    halves.add(other)
    at_ms = NOW_MS + 6_000
    for _ in range(40):
        for missed in halves.due(at_ms)[0]:
            halves.note_unreachable(missed, at_ms)
        at_ms += 30_000
    at_ms -= 29_000
    assert halves.checks == {}
    assert asked(halves, at_ms) == []
    halves.note_connected("producers", at_ms)
    assert asked(halves, at_ms) == [1]
    halves.note_asked(one, at_ms)
    halves.note_connected("producers", at_ms)
    assert asked(halves, at_ms) == []
    assert halves.statistics()["unreachable_groups"] == 1


def test_a_half_that_is_too_old_is_given_up_even_if_no_producer_ever_connects() -> None:
    halves, one = OpenHalves(), half()
    halves.add(one)
    old_ms = NOW_MS + SCHEDULE.max_age_ms + 1
    assert halves.due(old_ms - 1) == ([one], [])
    assert halves.due(old_ms) == ([], [one])


def test_a_message_that_was_sent_twice_has_two_halves_with_one_key() -> None:
    halves, first, second = OpenHalves(), half(1, "k"), half(2, "k")
    halves.add(first)
    halves.add(second)
    assert halves.by_key("k") == [first, second]
    halves.end(second)
    assert halves.by_key("k") == [first]


def test_both_offsets_of_a_half_must_match() -> None:
    halves, one = OpenHalves(), half(3)
    halves.add(one)
    assert halves.find(300, 3) == one
    assert halves.find(300, 4) is None
    assert halves.find(301, 3) is None


def test_the_number_of_open_halves_is_bounded() -> None:
    halves = OpenHalves(max_open=2)
    for number in range(2):
        halves.check_room()
        halves.add(half(number))
    with pytest.raises(TooManyHalves):
        halves.check_room()
    assert halves.statistics()["refused_halves"] == 1


def test_transactions_that_end_at_once_leave_nothing_behind() -> None:
    halves = OpenHalves()
    for number in range(5_000):
        halves.add(half(number))
        halves.end(half(number))
    statistics = halves.statistics()
    assert statistics["open_halves"] == 0
    assert statistics["check_times"] < 1_100


# The log


class Halves:
    """A store with transactions, and no broker around it."""

    def __init__(self, disk: MemoryDisk, now_ms: int = NOW_MS, apache_offset: int = 0) -> None:
        self.disk = disk
        self.open = OpenHalves()
        state = TransactionState(self.open)
        self.store = MessageStore(
            disk, SMALL, SimulatedClock(NOW_MS), store_host=HOST, new_store_id="a" * 32, participants=[state]
        )
        self.topic = HalfTopic(self.store, state, born_host=HOST, now_ms=now_ms, apache_offset=apache_offset)

    def send(self, key: str) -> Half:
        properties = encode_properties({"UNIQ_KEY": key, "PGROUP": "producers"}).encode()
        appended = Appended(*self.store.writer.append(HALF_TOPIC, 0, key.encode(), properties, 1, HOST))
        return self.topic.note_stored(appended, NOW_MS, properties)

    def commit(self, *halves: Half, topic: str = "orders") -> None:
        drafts = [Draft(topic, 0, one.unique_key.encode(), b"", 1, HOST) for one in halves]
        self.topic.end(drafts, halves, [], NOW_MS)

    def roll_back(self, *halves: Half) -> None:
        self.topic.end([], [], halves, NOW_MS)

    def save(self) -> None:
        self.store.save(self.store.plan_checkpoint())

    def killed(self, now_ms: int = NOW_MS) -> "Halves":
        return Halves(self.disk.after_process_crash(), now_ms)

    def keys(self) -> list[str]:
        return sorted(one.unique_key for one in self.open.due(NOW_MS + 1_000_000_000, 10_000)[1])


@pytest.mark.parametrize("is_saved", [True, False])
@pytest.mark.parametrize("is_lost", [True, False])
def test_open_halves_are_found_in_the_log(is_saved: bool, is_lost: bool) -> None:
    own = Halves(MemoryDisk())
    halves = [own.send(f"k{number}") for number in range(6)]
    own.commit(halves[0])
    own.roll_back(halves[3])
    if is_saved:
        own.save()
    own.commit(halves[4])
    own.send("k6")
    if is_lost:
        own.disk.remove(CHECKPOINT)
    again = own.killed()
    assert again.keys() == ["k1", "k2", "k5", "k6"]
    assert again.open.find(halves[1].physical_offset, 1) == halves[1]
    assert bodies(again.store) == [b"k0", b"k4"]


def test_the_half_at_the_beginning_of_the_log_ends_too() -> None:
    own = Halves(MemoryDisk())
    first = own.send("k0")
    assert (first.physical_offset, first.reference, reference_to(5)) == (0, -1, 5)
    own.commit(first)
    assert own.killed().keys() == []


def test_counts_of_checks_are_in_the_checkpoint_and_the_next_check_follows_from_them() -> None:
    own = Halves(MemoryDisk())
    one, other = own.send("k0"), own.send("k1")
    own.open.note_asked(one, NOW_MS + 6_000)
    own.open.note_asked(one, NOW_MS + 36_000)
    own.save()
    own.open.note_asked(one, NOW_MS + 66_000)
    again = own.killed(NOW_MS + 50_000)
    assert again.open.checks == {0: 2}, "a crash repeats a few"
    assert asked(again.open, NOW_MS + 65_999) == [other.queue_offset]
    assert asked(again.open, NOW_MS + 66_000) == [1, 0]


def test_checks_that_were_missed_while_the_broker_was_down_are_made_at_its_start() -> None:
    own = Halves(MemoryDisk())
    own.send("k0")
    later_ms = NOW_MS + 3_600_000
    again = own.killed(later_ms)
    assert asked(again.open, later_ms - 1) == []
    assert asked(again.open, later_ms) == [0]


def test_the_end_of_a_half_is_also_a_record_that_apaches_broker_understands() -> None:
    own = Halves(MemoryDisk())
    halves = [own.send(f"k{number}") for number in range(4)]
    own.roll_back(halves[1])
    own.commit(halves[3], halves[0])
    queue = own.store.queues.find(OP_HALF_TOPIC, 0)
    assert queue is not None
    found = []
    for offset in range(queue.next_offset):
        entry = queue.entry(offset)
        message = own.store.reader.read_message(entry[0]) if entry is not None else None
        assert message is not None
        found.append((message.body, message.properties, message.prepared_transaction_offset))
    assert found == [
        (b"1,", {"TAGS": "d", "UNIQ_KEY": "1", "LMQ_HALF_END": "rolled back"}, halves[1].physical_offset),
        (b"3,", {"TAGS": "d", "UNIQ_KEY": "3", "LMQ_HALF_END": "committed"}, 0),
        (b"0,", {"TAGS": "d", "UNIQ_KEY": "0", "LMQ_HALF_END": "committed"}, 0),
    ]
    assert [own.topic.ending(number) for number in range(4)] == ["committed", "rolled back", "", "committed"]


def test_a_broker_without_transactions_in_between_does_not_open_committed_halves_again() -> None:
    own = Halves(MemoryDisk())
    halves = [own.send(f"k{number}") for number in range(4)]
    own.commit(halves[0], halves[2])
    own.roll_back(halves[1])
    own.save()
    disk = own.disk.after_process_crash()
    older = MessageStore(disk, SMALL, SimulatedClock(NOW_MS), store_host=HOST, new_store_id="a" * 32)
    older.close()
    assert Halves(disk).keys() == ["k3"]


def test_in_a_store_of_apache_its_op_topic_and_its_offset_say_what_has_ended() -> None:
    own = Halves(MemoryDisk())
    for number in range(8):
        own.send(f"k{number}")
    for body in (b"2,3", b"6,", b"x,,99999999999999999999"):
        own.store.writer.append(OP_HALF_TOPIC, 0, body, b"TAGS\x01d\x02", 1, HOST)
    own.store.close()
    disk = own.disk
    for path in (CHECKPOINT, "latermq.storeid"):
        disk.remove(path)
    again = Halves(disk, apache_offset=1)
    assert again.keys() == ["k1", "k4", "k5", "k7"]
    again.save()
    assert again.killed().keys() == ["k1", "k4", "k5", "k7"]


def test_a_message_that_was_given_up_is_kept_in_its_own_topic_and_is_not_asked_for_again() -> None:
    own = Halves(MemoryDisk())
    one = own.send("k0")
    for number in range(15):
        own.open.note_asked(one, NOW_MS + 30_000 * number)
    (given_up,) = own.open.due(NOW_MS + 500_000)[1]
    own.commit(given_up, topic=TRANSACTION_CHECK_TOPIC)
    assert own.killed().keys() == []
    assert bodies(own.store, TRANSACTION_CHECK_TOPIC) == [b"k0"]


def test_a_half_stays_open_if_its_end_cannot_be_stored() -> None:
    own = Halves(MemoryDisk())
    one = own.send("k0")

    def fail(operation: str, path: str) -> None:
        raise StoreError("injected failure")

    own.disk.before_step = fail
    with pytest.raises(StoreError):
        own.commit(one, topic="x" * 10)
    own.disk.before_step = lambda operation, path: None
    assert own.keys() == ["k0"]
    own.commit(one)
    assert own.killed().keys() == []


def test_retention_keeps_open_halves() -> None:
    own = Halves(MemoryDisk())
    first, second = own.send("k0"), own.send("k1")
    own.commit(first)
    assert own.topic.needed_from() == second.physical_offset
    own.roll_back(second)
    assert own.topic.needed_from() == own.store.log.end


def test_timers_are_not_mistaken_for_ends() -> None:
    own = Halves(MemoryDisk())
    one = own.send("k0")
    two = own.send("k1")
    entry_id = 1 << 62 | two.physical_offset
    own.store.writer.append_all([Draft("orders", 0, b"x", b"", 1, HOST, prepared_transaction_offset=entry_id)])
    assert own.killed().keys() == ["k0", "k1"]
    own.commit(one)
    assert own.killed().keys() == ["k1"]


def test_the_checkpoint_field_is_small_while_transactions_end_in_order() -> None:
    own = Halves(MemoryDisk())
    for number in range(200):
        own.commit(own.send(f"k{number}"))
    own.save()
    saved = load_checkpoint(own.disk)
    assert saved is not None
    assert bytes(saved.more["transactions"]) == b'{"ended":[[0,200]],"checks":{}}'


def test_copies_of_halves_by_apaches_broker_go_on_with_their_checks_unless_the_first_one_has_ended() -> None:
    own = Halves(MemoryDisk())
    for number, more in enumerate(
        (
            {},  # committed, with its op record
            {"TRAN_PREPARED_QUEUE_OFFSET": "0"},  # a copy of it
            {"TRANSACTION_CHECK_TIMES": "4"},
            {"TRANSACTION_CHECK_TIMES": "many"},
        )
    ):
        properties = encode_properties({"UNIQ_KEY": f"k{number}", "PGROUP": "producers"} | more).encode()
        own.store.writer.append(HALF_TOPIC, 0, b"x", properties, 1, HOST)
    own.store.writer.append(OP_HALF_TOPIC, 0, b"0,", encode_properties({"TAGS": "d"}).encode(), 1, HOST)
    own.store.release()
    own.disk.remove(CHECKPOINT)
    again = Halves(own.disk.after_process_crash())
    assert again.keys() == ["k2", "k3"]
    assert again.open.checks == {2: 4}
    assert asked(again.open, NOW_MS + 29_999) == [3], "a copy was stored at its last check"
    assert asked(again.open, NOW_MS + 30_000) == [3, 2]


def test_ends_that_apaches_broker_wrote_after_the_last_checkpoint_count() -> None:
    own = Halves(MemoryDisk())
    own.send("k0")
    own.send("k1")
    own.save()
    own.store.writer.append(OP_HALF_TOPIC, 0, b"1,", encode_properties({"TAGS": "d"}).encode(), 1, HOST)
    again = own.killed()
    assert asked(again.open, NOW_MS + 6_000) == [0]
