"""Transactions in a broker: half messages, commits, rollbacks, checks, and what a restart makes of them."""

from typing import Any

import msgspec
import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import Duration, TransactionConfig
from latermq.errors import (
    IllegalMessage,
    IllegalOperation,
    NoPermission,
    ServiceUnavailable,
    TopicNotFound,
    TransactionNotFound,
)
from latermq.group.transactions.open_halves import MAX_SAME_KEY, TooManyHalves
from latermq.message.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_CHECK_TOPIC
from latermq.message.properties import FIRST_HALF, MAX_PROPERTIES_BYTES, TRANSACTION_CHECKS, encode_properties
from latermq.message.record import decode_record
from latermq.message.record_fields import SYSFLAG_COMMITTED
from latermq.model.transaction import Decision, EndTransaction
from latermq.protocol.remoting.frames import FrameReader
from latermq.protocol.remoting.transactions import encode_check
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import HOST, STAMP, STORE, bodies, messages, open_broker, pass_time, send
from tests.support.producers import GROUP, commit, connect, end, end_by_key, roll_back, run_checks, send_half

NOW_MS = 1_800_000_000_000


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(NOW_MS)


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def broker(disk: MemoryDisk, clock: SimulatedClock) -> Broker:
    return open_broker(disk, clock)


def killed(disk: MemoryDisk, clock: SimulatedClock) -> Broker:
    return open_broker(disk.after_process_crash(), clock)


def state_of(broker: Broker, key: str, group: str = GROUP, topic: str = "") -> str:
    return broker.decisions.state_of(EndTransaction(group, Decision.UNKNOWN, None, None, key, topic))


def test_a_proxy_learns_how_a_transaction_stands(broker: Broker, disk: MemoryDisk, clock: SimulatedClock) -> None:
    commit(broker, send_half(broker, b"one"))
    roll_back(broker, send_half(broker, b"two"))
    send_half(broker, b"three")
    for known in (broker, killed(disk, clock)):
        assert [state_of(known, key) for key in ("one", "two", "three", "four")] == [
            "committed", "rolled back", "open", "",
        ]  # fmt: skip
        assert state_of(known, "one", group="others") == state_of(known, "three", topic="other") == ""


# Halves


def test_a_half_is_stored_where_rocketmqs_broker_looks_for_it(broker: Broker) -> None:
    half = send_half(broker, b"one", queue_id=3, KEYS="k", TAGS="t")
    assert bodies(broker, queue_id=3) == []
    (stored,) = messages(broker, HALF_TOPIC)
    assert stored.body == b"one"
    assert stored.properties == STAMP | {
        "UNIQ_KEY": "one", "PGROUP": GROUP, "TRAN_MSG": "true", "KEYS": "k", "TAGS": "t",
        "REAL_TOPIC": "orders", "REAL_QID": "3", "__transactionId__": "one",
    }  # fmt: skip
    assert stored.sysflag == 0
    assert (half.message_id, half.queue_id, half.queue_offset) == (stored.message_id, 3, 0)
    assert half.unique_key == "one"


def test_a_half_without_a_key_gets_one_and_one_without_a_group_takes_that_of_the_request(broker: Broker) -> None:
    properties = encode_properties({"TRAN_MSG": "true"})
    half = broker.half_writer.send("orders", 0, b"one", properties, 1, HOST, producer_group="others")
    assert half.unique_key
    end_by_key(broker, half.unique_key, Decision.COMMIT, "others")
    assert bodies(broker) == [b"one"]
    with pytest.raises(IllegalMessage, match="names no producer group"):
        broker.half_writer.send("orders", 0, b"one", properties, 1, HOST)


@pytest.mark.parametrize("topic", [HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_CHECK_TOPIC])
def test_the_topics_of_transactions_are_closed(broker: Broker, topic: str) -> None:
    with pytest.raises(NoPermission):
        send(broker, b"forged", topic)
    with pytest.raises(NoPermission):
        send_half(broker, b"forged", topic)
    assert topic not in broker.topics.names()


def test_halves_cannot_be_consumed(broker: Broker) -> None:
    send_half(broker, b"one")
    for topic in (HALF_TOPIC, OP_HALF_TOPIC):
        with pytest.raises(NoPermission, match="cannot be consumed"):
            broker.reader.check_readable("group", topic, 0)


def test_the_number_of_open_transactions_is_bounded(disk: MemoryDisk, clock: SimulatedClock) -> None:
    broker = open_broker(disk, clock, transaction=TransactionConfig(max_open=2))
    first = send_half(broker, b"1")
    send_half(broker, b"2")
    with pytest.raises(TooManyHalves):
        send_half(broker, b"3")
    commit(broker, first)
    send_half(broker, b"3")


def test_few_open_transactions_share_a_key(broker: Broker) -> None:
    for number in range(MAX_SAME_KEY):
        send_half(broker, b"%d" % number, key="same")
    with pytest.raises(TooManyHalves, match="same"):
        send_half(broker, b"more", key="same")


def test_what_could_not_be_committed_later_is_refused_at_once(broker: Broker) -> None:
    def grown(by: int, **more: Any) -> None:
        size = MAX_PROPERTIES_BYTES - by
        send_half(broker, b"x", filler="f" * size, **more)

    with pytest.raises(IllegalMessage, match="properties"):
        grown(150)  # the half has too many bytes
    grown(300)
    with pytest.raises(IllegalMessage, match="properties of a timer"):
        grown(300, TIMER_DELAY_SEC="60")  # the half would fit, but not the timer
    with pytest.raises(IllegalMessage, match="not an integer"):
        send_half(broker, b"x", TIMER_DELIVER_MS="soon")
    with pytest.raises(IllegalMessage, match="cancel"):
        send_half(broker, b"x", TIMER_DEL_UNIQKEY="k", TIMER_DELAY_SEC="9")
    with pytest.raises(IllegalMessage, match="does not fit a segment"):
        send_half(broker, bytes(256 * 1024 - 1_000), key="k")
    assert len(messages(broker, HALF_TOPIC)) == 1


def test_a_half_of_the_largest_size_can_be_committed_and_given_up(broker: Broker, clock: SimulatedClock) -> None:
    """The largest one is found by trial, so that no check can be off by a few bytes."""
    kinds: list[dict[str, Any]] = [{"DELAY": "1"}, {}, {}]
    for size in range(256 * 1024, 0, -37):
        try:
            delayed, plain, _ = [
                send_half(broker, bytes(size), key=f"{size} {kind}", **more) for kind, more in enumerate(kinds)
            ]
        except IllegalMessage:
            continue
        break
    assert size > 200_000
    for _ in range(MAX_SAME_KEY - 1):
        send_half(broker, b"twin", key=plain.unique_key)
    commit(broker, plain)
    commit(broker, delayed)
    pass_time(broker, clock, 5_000)
    assert [len(body) for body in bodies(broker)] == [size, size]
    clock.advance(broker.config.transaction.timeout + 1)
    run_checks(broker)
    assert [len(body) for body in bodies(broker, TRANSACTION_CHECK_TOPIC)] == [size]


# Ends


def test_a_commit_stores_the_message_once_and_may_be_repeated(broker: Broker) -> None:
    half = send_half(broker, b"one", queue_id=2, TAGS="t")
    for _ in range(3):
        commit(broker, half)
        end_by_key(broker, "one", Decision.COMMIT)
    (message,) = messages(broker, queue_id=2)
    assert message.properties == STAMP | {
        "UNIQ_KEY": "one", "PGROUP": GROUP, "TAGS": "t", "__transactionId__": "one",
    }  # fmt: skip
    assert message.sysflag == SYSFLAG_COMMITTED
    assert message.prepared_transaction_offset == -1, "the half at offset 0"
    assert message.born_timestamp_ms == 1_700_000_000_000
    assert broker.transaction_tallies.committed == 1


def test_a_rollback_may_be_repeated_and_not_turned_into_a_commit(broker: Broker) -> None:
    half = send_half(broker, b"one")
    roll_back(broker, half)
    roll_back(broker, half)
    end_by_key(broker, "one", Decision.ROLL_BACK)
    with pytest.raises(IllegalOperation, match="rolled back"):
        commit(broker, half)
    with pytest.raises(IllegalOperation, match="rolled back"):
        end_by_key(broker, "one", Decision.COMMIT)
    assert bodies(broker) == []


def test_a_commit_is_not_turned_into_a_rollback(broker: Broker) -> None:
    half = send_half(broker, b"one")
    commit(broker, half)
    with pytest.raises(IllegalOperation, match="committed"):
        roll_back(broker, half)
    assert bodies(broker) == [b"one"]


def test_an_unknown_outcome_changes_nothing(broker: Broker) -> None:
    half = send_half(broker, b"one")
    assert end(broker, half, Decision.UNKNOWN) == 0
    assert len(broker.open_halves) == 1


@pytest.mark.parametrize("decision", list(Decision))
def test_another_group_cannot_end_a_transaction(broker: Broker, decision: Decision) -> None:
    half = send_half(broker, b"one")
    with pytest.raises(TransactionNotFound, match="does not belong to producer group 'others'"):
        end(broker, half, decision, "others")
    commit(broker, half)
    if decision is not Decision.UNKNOWN:
        with pytest.raises(TransactionNotFound):
            end(broker, half, decision, "others")
        with pytest.raises(TransactionNotFound):
            end_by_key(broker, "one", decision, "others")


def test_forged_offsets_end_nothing(broker: Broker) -> None:
    send(broker, b"plain")
    half = send_half(broker, b"one")
    at = int(half.message_id[-16:], 16)
    # A body that is itself a record of the half topic, at an offset that its sender knows.
    forged = broker.store.log.read(at, half.end_offset - at)
    send(broker, forged)
    for physical, queue in (
        (0, 0), (at, 1), (at, -1), (at + 1, 0), (-1, 0), (-1, -1), (1 << 62, 0), (at, 1 << 62),
        *((offset, 0) for offset in range(half.end_offset, broker.store.log.end)),
    ):  # fmt: skip
        with pytest.raises(TransactionNotFound):
            broker.decisions.end(EndTransaction(GROUP, Decision.COMMIT, physical, queue, "one", ""))
    with pytest.raises(TransactionNotFound):
        end_by_key(broker, "two", Decision.COMMIT)
    assert len(broker.open_halves) == 1
    assert bodies(broker) == [b"plain", forged]


def test_a_key_names_the_half_of_its_topic(broker: Broker) -> None:
    send_half(broker, b"1", "orders", key="same")
    send_half(broker, b"2", "bills", key="same")
    end_by_key(broker, "same", Decision.COMMIT, topic="bills")
    assert (bodies(broker, "orders"), bodies(broker, "bills")) == ([], [b"2"])
    assert len(broker.open_halves) == 1


def test_a_half_that_was_sent_again_is_committed_once(broker: Broker, clock: SimulatedClock) -> None:
    halves = [send_half(broker, b"%d" % number, key="same") for number in range(3)]
    commit(broker, halves[1])
    assert bodies(broker) == [b"1"]
    assert len(broker.open_halves) == 0
    end_by_key(broker, "same", Decision.COMMIT)
    with pytest.raises(IllegalOperation):
        commit(broker, halves[0])
    assert bodies(broker) == [b"1"]


def test_a_commit_whose_topic_was_deleted_says_so_and_succeeds_when_it_is_there_again(broker: Broker) -> None:
    half = send_half(broker, b"one")
    for work in broker.topic_admin.delete("orders"):
        work()
    with pytest.raises(TopicNotFound, match="cannot be committed"):
        commit(broker, half)
    assert len(broker.open_halves) == 1
    send(broker, b"another")
    commit(broker, half)
    assert bodies(broker) == [b"another", b"one"]


def test_transactions_end_above_disk_high_and_stay_open_above_disk_full(
    broker: Broker, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = connect(broker)
    halves = [send_half(broker, b"%d" % number) for number in range(3)]
    monkeypatch.setattr(broker.store, "used_ratio", lambda: 0.92)
    broker.gate.check_disk()
    with pytest.raises(ServiceUnavailable):
        send_half(broker, b"new")
    commit(broker, halves[0])
    monkeypatch.setattr(broker.store, "used_ratio", lambda: 0.99)
    broker.gate.check_disk()
    for decision in (Decision.COMMIT, Decision.ROLL_BACK):
        with pytest.raises(ServiceUnavailable):
            end(broker, halves[1], decision)
    clock.advance(broker.config.transaction.timeout * 2)
    assert run_checks(broker) == [], "a producer could not answer"
    assert bodies(broker, TRANSACTION_CHECK_TOPIC) == []
    assert channel.frames == []
    monkeypatch.setattr(broker.store, "used_ratio", lambda: 0.1)
    broker.gate.check_disk()
    commit(broker, halves[1])
    assert bodies(broker) == [b"0", b"1"]


# Delays


@pytest.mark.parametrize(
    ("delay", "due_ms"),
    [
        ({"DELAY": "2"}, 100_000 + 5_000),
        ({"TIMER_DELAY_SEC": "7"}, 100_000 + 7_000),
        ({"TIMER_DELAY_MS": "1234"}, 100_000 + 1_234),
        ({"TIMER_DELIVER_MS": str(NOW_MS + 130_001)}, 130_001),
        ({"__STARTDELIVERTIME": str(NOW_MS + 130_001)}, 130_001),
        ({"TIMER_DELIVER_MS": str(NOW_MS + 50_000)}, 100_000),  # passed before the commit
    ],
)
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_delayed_message_waits_from_its_commit_on(
    broker: Broker, disk: MemoryDisk, clock: SimulatedClock, delay: dict[str, Any], due_ms: int, is_killed: bool
) -> None:
    half = send_half(broker, b"late", **delay)
    pass_time(broker, clock, 100_000)
    assert bodies(broker) == [], "it is not committed"
    commit(broker, half)
    if is_killed:
        broker = killed(disk, clock)
    commit(broker, half)
    pass_time(broker, clock, max(0, due_ms - 100_000 - 1))
    assert bodies(broker) == ([b"late"] if due_ms == 100_000 else []), "not early"
    pass_time(broker, clock, 1)
    assert bodies(broker) == [b"late"]
    assert messages(broker)[0].store_timestamp_ms == NOW_MS + due_ms
    pass_time(broker, clock, 1_000_000)
    commit(broker, half)
    assert bodies(broker) == [b"late"]


def test_a_rolled_back_timer_is_never_delivered(broker: Broker, clock: SimulatedClock) -> None:
    roll_back(broker, send_half(broker, b"late", TIMER_DELAY_SEC="7"))
    pass_time(broker, clock, 100_000)
    assert bodies(broker) == []
    assert not broker.timers.pending["orders"]


def test_a_committed_timer_can_be_cancelled_by_its_key(broker: Broker, clock: SimulatedClock) -> None:
    half = send_half(broker, b"late", TIMER_DELAY_SEC="7")
    commit(broker, half)
    assert broker.timers.pending["orders"] == 1
    send(broker, b"", TIMER_DEL_UNIQKEY="late", TIMER_DELAY_SEC="7")
    pass_time(broker, clock, 100_000)
    assert bodies(broker) == []
    commit(broker, half)
    pass_time(broker, clock, 100_000)
    assert bodies(broker) == []


# Checks


def test_a_producer_is_asked_on_rocketmqs_schedule_and_then_given_up(broker: Broker, clock: SimulatedClock) -> None:
    channel = connect(broker)
    half = send_half(broker, b"one", queue_id=3)
    assert broker.transaction_checks.wait_ms() == 6_000
    asked_s = []
    for second in range(600):
        for asked, message in run_checks(broker):
            assert asked is channel
            assert message.message_id == half.message_id
            asked_s.append(second)
        clock.advance(1_000)
    assert asked_s == [6 + 30 * number for number in range(15)]
    (given_up,) = messages(broker, TRANSACTION_CHECK_TOPIC)
    assert (given_up.body, given_up.properties["REAL_TOPIC"], given_up.properties["REAL_QID"]) == (
        b"one",
        "orders",
        "3",
    )
    assert given_up.store_timestamp_ms == NOW_MS + (6 + 30 * 15) * 1_000
    with pytest.raises(IllegalOperation, match="given up"):
        commit(broker, half)
    roll_back(broker, half)
    assert broker.transaction_checks.wait_ms() is None or broker.transaction_checks.wait_ms() == 0
    assert run_checks(broker) == []
    assert bodies(broker) == []
    broker.reader.check_readable("operators", TRANSACTION_CHECK_TOPIC, 0)


def test_a_check_has_rocketmqs_fields_and_the_record_with_its_real_topic(broker: Broker, clock: SimulatedClock) -> None:
    connect(broker)
    send(broker, b"before")
    half = send_half(broker, b"one", queue_id=3, KEYS="k")
    clock.advance(6_000)
    ((_, message),) = run_checks(broker)
    (command,) = FrameReader().feed(encode_check(message, "broker-a"))
    assert (command.code, command.flag) == (39, 2)
    assert command.text_fields() == {
        "topic": HALF_TOPIC, "tranStateTableOffset": "0", "commitLogOffset": str(int(half.message_id[-16:], 16)),
        "msgId": "one", "transactionId": "one", "offsetMsgId": half.message_id, "bname": "broker-a",
    }  # fmt: skip
    record = decode_record(command.body)
    assert (record.topic, record.queue_id, record.body) == ("orders", 3, b"one")
    assert record.properties == message.properties
    assert record.physical_offset == message.physical_offset


def test_the_producers_of_a_group_take_turns_and_busy_ones_are_left_out(broker: Broker, clock: SimulatedClock) -> None:
    first, second, busy = (connect(broker, client_id=name) for name in "abc")
    other = connect(broker, "others", "d")
    busy.is_paused = True
    for number in range(4):
        send_half(broker, b"%d" % number)
    clock.advance(6_000)
    asked = [channel for channel, _ in run_checks(broker)]
    assert {id(first), id(second)} == set(map(id, asked))
    assert asked.count(first) == asked.count(second) == 2
    assert other not in asked


def test_a_producer_with_unread_data_is_asked_a_moment_later(broker: Broker, clock: SimulatedClock) -> None:
    channel = connect(broker)
    channel.is_paused = True
    send_half(broker, b"one")
    clock.advance(6_000)
    assert run_checks(broker) == []
    channel.is_paused = False
    clock.advance(1_000)
    assert len(run_checks(broker)) == 1


def test_a_producer_that_connects_is_asked_at_once_for_what_it_missed(broker: Broker, clock: SimulatedClock) -> None:
    for number in range(2_000):
        send_half(broker, b"%d" % number)
    clock.advance(3_600_000)
    assert run_checks(broker) == []
    clock.advance(1_000)
    connect(broker)
    assert broker.transaction_checks.wait_ms() == 0
    assert len(run_checks(broker)) == 2_000


def test_no_check_is_sent_for_a_clock_that_jumps(broker: Broker, clock: SimulatedClock) -> None:
    connect(broker)
    send_half(broker, b"one")
    clock.step(broker.config.transaction.timeout * 2)
    assert run_checks(broker) == []
    assert bodies(broker, TRANSACTION_CHECK_TOPIC) == []


# Restarts


def test_open_transactions_survive_a_kill_and_go_on_with_their_checks(
    broker: Broker, disk: MemoryDisk, clock: SimulatedClock
) -> None:
    connect(broker)
    halves = [send_half(broker, b"%d" % number) for number in range(4)]
    commit(broker, halves[0])
    roll_back(broker, halves[1])
    clock.advance(6_000)
    assert len(run_checks(broker)) == 2
    broker.store.save(broker.store.plan_checkpoint())
    again = killed(disk, clock)
    assert len(again.open_halves) == 2
    connect(again)
    assert run_checks(again) == []
    clock.advance(30_000)
    assert [message.body for _, message in run_checks(again)] == [b"2", b"3"]
    commit(again, halves[0])
    roll_back(again, halves[1])
    with pytest.raises(IllegalOperation):
        commit(again, halves[1])
    commit(again, halves[2])
    assert bodies(again) == [b"0", b"2"]


@pytest.mark.parametrize(("name", "forged"), [(FIRST_HALF, "0"), (TRANSACTION_CHECKS, "99")])
def test_a_sender_cannot_mark_its_half_as_a_copy_of_one_that_has_ended(
    broker: Broker, disk: MemoryDisk, clock: SimulatedClock, name: str, forged: str
) -> None:
    commit(broker, send_half(broker, b"first"))
    half = send_half(broker, b"second", "orders", 0, "", **{name: forged})
    again = killed(disk, clock)
    connect(again)
    clock.advance(6_000)
    assert [asked.body for _, asked in run_checks(again)] == [b"second"]
    commit(again, half)
    assert bodies(again) == [b"first", b"second"]


def test_an_open_half_keeps_its_segment(broker: Broker, clock: SimulatedClock) -> None:
    half = send_half(broker, b"one")
    for _ in range(20):
        send(broker, bytes(60_000))
    clock.advance(broker.config.store.retention + 1)
    send(broker, b"young")
    broker.store.save(broker.store.plan_checkpoint())
    assert broker.retention.run() == []
    commit(broker, half)
    broker.store.save(broker.store.plan_checkpoint())
    assert broker.retention.run()
    with pytest.raises(TransactionNotFound, match="no half message at these offsets"):
        commit(broker, half)
    assert bodies(broker)[-1] == b"one"


def test_a_damaged_half_is_given_up_and_the_others_are_asked_for(
    broker: Broker, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(broker)
    damaged, whole = send_half(broker, b"damaged"), send_half(broker, b"whole")
    read = broker.store.reader.read_message
    bad_offset = int(damaged.message_id[-16:], 16)
    monkeypatch.setattr(
        type(broker.store.reader), "read_message", lambda _, offset: None if offset == bad_offset else read(offset)
    )
    with pytest.raises(TransactionNotFound, match="damaged"):
        commit(broker, damaged)
    clock.advance(6_000)
    assert [message.body for _, message in run_checks(broker)] == [b"whole"]
    commit(broker, whole)
    assert len(broker.open_halves) == 0


def test_a_transaction_keeps_the_log_no_longer_than_other_messages(disk: MemoryDisk, clock: SimulatedClock) -> None:
    broker = open_broker(disk, clock, store=msgspec.structs.replace(STORE, retention=Duration.parse("1h")))
    send_half(broker, b"one", CHECK_IMMUNITY_TIME_IN_SECONDS="999999999")
    clock.advance(3_600_000)
    run_checks(broker)
    assert len(broker.open_halves) == 1
    clock.advance(30_001)
    run_checks(broker)
    assert bodies(broker, TRANSACTION_CHECK_TOPIC) == [b"one"]
