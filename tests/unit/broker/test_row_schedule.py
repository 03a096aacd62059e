"""Scheduling in bulk: rows become the timers that sends would have made, each once, all of them or none."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from latermq.broker.broker import Broker
from latermq.broker.timers.row_schedule import ScheduleResult
from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig, Config, Size, StoreConfig, TimerConfig
from latermq.errors import (
    FlowControl,
    IllegalMessage,
    InvalidParameter,
    LaterMQError,
    NoPermission,
    ServiceUnavailable,
    StoreError,
    TopicNotFound,
)
from latermq.message.ids import pack_host
from latermq.message.names import TIMER_TOPIC
from latermq.message.record import Message
from latermq.message.timer_code import CANCEL, TIMER
from latermq.model.timers import Verdict
from latermq.protocol.remoting.rows import decode_rows, encode_rows
from latermq.store.files.memory_disk import MemoryDisk
from latermq.timer.far.far_names import Waiting
from tests.support.brokers_in_memory import HOST, STORE, messages, open_broker, pass_time, run_until_quiet, send
from tests.support.rows import Row, batch_of

MINUTE_MS, DAY_MS = 60_000, 86_400_000


class Scene:
    """A broker in memory that can die and come back."""

    def __init__(self, timer: TimerConfig | None = None, store: StoreConfig = STORE) -> None:
        self._timer, self._store = timer, store
        self.clock = SimulatedClock()
        self.disk = MemoryDisk()
        self._open()

    def _open(self) -> None:
        self.broker: Broker = open_broker(self.disk, self.clock, self._timer, self._store)
        self.rows = self.broker.row_schedule

    def restart(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self._open()

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def schedule(self, *rows: Row, born_host: bytes = HOST) -> tuple[int, int]:
        """Schedule rows. Return how many are new, and how many were known."""
        done = self.schedule_in_detail(*rows, born_host=born_host)
        return done.scheduled, done.known

    def schedule_in_detail(self, *rows: Row, born_host: bytes = HOST) -> ScheduleResult:
        return self.rows.schedule(decode_rows(encode_rows(batch_of(rows))), born_host)

    def some(self, count: int, first: int = 0) -> list[Row]:
        return [
            Row(f"K{number}", due_ms=self.now_ms + MINUTE_MS + number, body=b"%d" % number)
            for number in range(first, first + count)
        ]

    def waiting(self) -> list[Message]:
        return messages(self.broker, TIMER_TOPIC)

    def delivered(self, topic: str = "orders") -> list[bytes]:
        return sorted(message.body for number in range(8) for message in messages(self.broker, topic, number))

    def pass_ms(self, by_ms: int) -> None:
        self.broker.store.flush()
        pass_time(self.broker, self.clock, by_ms)


# What a row becomes


def test_the_result_tells_which_rows_were_known_and_what_time_it_was() -> None:
    scene = Scene()
    first, second = scene.some(2)
    assert scene.schedule(second) == (1, 0)
    done = scene.schedule_in_detail(first, second, first)
    assert done.is_known.tolist() == [False, True, True]
    assert done.now_ms == scene.now_ms


def test_a_row_becomes_the_record_that_a_send_would_have_made() -> None:
    scene = Scene()
    due_ms = scene.now_ms + MINUTE_MS + 7
    row = Row("K1", due_ms, body=b"body", keys="a b", tags="paid", properties={"region": "süd"})
    scene.schedule(row)
    send(
        scene.broker, b"body", queue_id=0,
        region="süd", UNIQ_KEY="K1", KEYS="a b", TAGS="paid", TIMER_DELIVER_MS=str(due_ms),
    )  # fmt: skip
    from_row, sent = scene.waiting()
    assert list(from_row.properties.items()) == [
        (name, value) for name, value in sent.properties.items() if name != "TIMER_DELIVER_MS"
    ]
    for name in (
        "topic",
        "body",
        "queue_id",
        "flag",
        "sysflag",
        "born_host",
        "store_host",
        "body_crc",
        "reconsume_times",
    ):
        assert getattr(from_row, name) == getattr(sent, name)
    queue = scene.broker.store.queues.ensure(TIMER_TOPIC, 0)
    entries = queue.array(0, 2)
    assert entries["tags"][0] == entries["tags"][1]
    for key in ("K1", "a", "b"):
        assert len(list(scene.broker.store.reader.find_by_key(TIMER_TOPIC, key, 0, 1 << 62))) == 2


def test_the_log_is_whole_after_rows_of_every_shape() -> None:
    scene = Scene()
    scene.schedule(
        Row("K1", scene.now_ms + 5_000, body=b""),
        Row("schlüssel", scene.now_ms + 5_000, body=bytes(1000), keys="ключ x", tags="🎯"),
        Row("M", scene.now_ms + 5_000, keys=" ", topic="bills"),
        Row("L" * 300, scene.now_ms + 5_000, keys="k" * 300, topic="bills", properties={"a": "1", "b": "2"}),
        born_host=pack_host("::1", 5),
    )
    written = scene.waiting()
    scene.restart(scene.disk.after_process_crash())
    assert scene.waiting() == written
    for key in ("K1", "schlüssel", "L" * 300, "ключ", "x", "k" * 300):
        assert len(list(scene.broker.store.reader.find_by_key(TIMER_TOPIC, key, 0, 1 << 62))) == 1
    assert written[1].born_host == ("::1", 5)
    scene.pass_ms(6_000)
    assert len(scene.delivered()) == 2
    assert len(scene.delivered("bills")) == 2


def test_rows_arrive_at_their_millisecond_whether_due_or_delayed() -> None:
    scene = Scene()
    start_ms = scene.now_ms
    scene.schedule(Row("due", start_ms + 2_345, body=b"due"), Row("delayed", delay_ms=3_456, body=b"delayed"))
    scene.pass_ms(10_000)
    arrived = {
        message.body: message.store_timestamp_ms - start_ms
        for number in range(8)
        for message in messages(scene.broker, "orders", number)
    }
    assert arrived == {b"due": 2_345, b"delayed": 3_456}


def test_a_row_whose_time_has_passed_is_delivered_at_once_and_only_once() -> None:
    scene = Scene()
    row = Row("late", due_ms=scene.now_ms - DAY_MS, body=b"late")
    assert scene.schedule(row) == (1, 0)
    run_until_quiet(scene.broker)
    assert scene.delivered() == [b"late"]
    assert scene.schedule(row) == (0, 1)
    run_until_quiet(scene.broker)
    assert scene.delivered() == [b"late"]


def test_rows_are_spread_over_the_queues_of_their_topic() -> None:
    scene = Scene()
    scene.schedule(*scene.some(80))
    counts = Counter(message.properties["REAL_QID"] for message in scene.waiting())
    assert counts == {str(number): 10 for number in range(8)}


def test_what_was_scheduled_counts_as_pending_for_its_topic() -> None:
    scene = Scene()
    scene.schedule(*scene.some(5), Row("other", scene.now_ms + MINUTE_MS, topic="bills"))
    assert scene.broker.timers.pending == {"orders": 5, "bills": 1}
    assert scene.broker.pending.status("bills", "other").verdict == Verdict.PENDING
    assert scene.broker.traffic.messages_in == 6


def test_a_batch_larger_than_a_segment_is_scheduled_in_parts() -> None:
    scene = Scene()
    rows = [Row(f"K{number}", scene.now_ms + 5_000, body=bytes(30_000)) for number in range(30)]
    assert scene.schedule(*rows) == (30, 0)
    assert len(scene.waiting()) == 30
    assert scene.schedule(*rows) == (0, 30)


def test_no_rows_are_no_work() -> None:
    assert Scene().schedule() == (0, 0)


# Once only


def test_rows_that_are_pending_are_known() -> None:
    scene = Scene()
    assert scene.schedule(*scene.some(10)) == (10, 0)
    assert scene.schedule(*scene.some(15)) == (5, 10)
    assert len(scene.waiting()) == 15


def test_rows_that_were_delivered_are_known_though_their_timer_record_is_gone() -> None:
    scene = Scene()
    rows = scene.some(3)
    scene.schedule(*rows)
    for _ in range(10):  # fills the first segment
        send(scene.broker, bytes(30_000), "fill")
    scene.pass_ms(2 * MINUTE_MS)
    store = scene.broker.store
    store.save(store.plan_checkpoint())
    store.log.drop_first_segment()
    for queue in store.queues:
        queue.forget_below(store.log.start)
    assert not list(store.reader.find_by_key(TIMER_TOPIC, "K1", 0, 1 << 62))
    assert scene.schedule(*rows) == (0, 3)


def test_rows_that_were_cancelled_are_known() -> None:
    scene = Scene()
    rows = scene.some(3)
    scene.schedule(*rows)
    assert scene.broker.pending.cancel("orders", "K1").verdict == Verdict.CANCELLED
    assert scene.schedule(*rows) == (0, 3)
    scene.pass_ms(2 * MINUTE_MS)
    assert scene.delivered() == [b"0", b"2"]
    assert scene.schedule(*rows) == (0, 3)


def test_a_row_that_was_moved_is_known() -> None:
    scene = Scene()
    rows = scene.some(1)
    scene.schedule(*rows)
    scene.broker.pending.move("orders", "K0", scene.now_ms + DAY_MS)
    assert scene.schedule(*rows) == (0, 1)


def test_each_message_key_of_each_row_finds_its_own_record() -> None:
    scene = Scene()
    keys = ["", " a  b ", "", "c", " ", "ü d a", "e " * 500, ""]
    rows = [row._replace(keys=text) for row, text in zip(scene.some(len(keys)), keys, strict=True)]
    scene.schedule(*rows)
    for key in {word for text in keys for word in text.split()}:
        offsets = set(scene.broker.store.reader.find_by_key(TIMER_TOPIC, key, 0, 1 << 62))
        found = [message for message in scene.waiting() if message.physical_offset in offsets]
        having = {row.key for row in rows if key in row.keys.split()}
        assert {message.properties["UNIQ_KEY"] for message in found} == having, key


def test_topics_of_rows_count_for_the_host_that_sent_them() -> None:
    scene = Scene()
    limit = scene.broker.config.broker.max_auto_created
    rows = [row._replace(topic=f"made{number}") for number, row in enumerate(scene.some(limit + 1))]
    with pytest.raises(NoPermission, match=f"have auto-created {limit} topics"):
        scene.schedule(*rows)
    assert not scene.waiting()


def test_only_new_rows_are_indexed_by_their_message_keys() -> None:
    scene = Scene()
    rows = [row._replace(keys=f"{row.key}-key") for row in scene.some(30)]
    scene.schedule(*rows[::2])
    scene.schedule(*rows)
    for number, row in enumerate(rows):
        [offset] = scene.broker.store.reader.find_by_key(TIMER_TOPIC, f"K{number}-key", 0, 1 << 62)
        message = scene.broker.store.reader.read_message(offset)
        assert message is not None
        assert message.properties["UNIQ_KEY"] == row.key


def test_the_same_key_of_another_topic_is_another_row() -> None:
    scene = Scene()
    due_ms = scene.now_ms + MINUTE_MS
    assert scene.schedule(Row("K", due_ms), Row("K", due_ms, topic="bills")) == (2, 0)
    assert scene.schedule(Row("K", due_ms, topic="bills"), Row("K", due_ms, topic="mails")) == (1, 1)


def test_far_rows_whose_records_have_left_the_log_are_known() -> None:
    scene = Scene()
    names = scene.broker.far_names
    told = [("K0", TIMER, scene.now_ms + DAY_MS), ("K1", TIMER, scene.now_ms + DAY_MS), ("K3", TIMER, scene.now_ms - 1)]
    waiting = [
        Waiting(entry, kind, due_ms, True, f"REAL_TOPIC\x01orders\x02UNIQ_KEY\x01{key}\x02".encode())
        for entry, (key, kind, due_ms) in enumerate(told)
    ]
    cancel = Waiting(9, CANCEL, scene.now_ms + DAY_MS, False, b"TIMER_DEL_UNIQKEY\x01orders+K1\x02")
    names.adopt([*waiting, cancel], 10, retention_ms=DAY_MS)
    run_until_quiet(scene.broker)  # T comes up to now: what was due before was delivered
    assert scene.schedule(*scene.some(4)) == (2, 2)
    assert [message.body for message in scene.waiting()] == [b"2", b"3"]
    assert scene.schedule(Row("K0", scene.now_ms + 5, topic="bills")) == (1, 0)
    names.close()


def test_of_rows_with_one_name_the_first_counts() -> None:
    scene = Scene()
    due_ms = scene.now_ms + MINUTE_MS
    done = scene.schedule(
        Row("K", due_ms, body=b"first"), Row("L", due_ms), Row("K", due_ms, body=b"second"), Row("K", due_ms)
    )
    assert done == (2, 2)
    assert [message.body for message in scene.waiting()] == [b"first", b"body"]


def test_a_message_that_was_sent_with_the_same_key_and_never_waited_is_no_timer() -> None:
    scene = Scene()
    send(scene.broker, b"sent", UNIQ_KEY="K0")
    assert scene.schedule(*scene.some(1)) == (1, 0)


def test_a_cancel_that_came_before_its_timer_keeps_no_row_away() -> None:
    scene = Scene()
    send(scene.broker, b"", TIMER_DELIVER_MS=str(scene.now_ms + MINUTE_MS), TIMER_DEL_UNIQKEY="orders+K0")
    assert scene.schedule(*scene.some(1)) == (1, 0)


def test_keys_whose_hashes_are_the_same_are_told_apart() -> None:
    scene = Scene()
    due_ms = scene.now_ms + MINUTE_MS
    assert scene.schedule(Row("Aa", due_ms)) == (1, 0)  # Java gives "Aa" and "BB" one hash
    assert scene.schedule(Row("BB", due_ms), Row("Aa", due_ms)) == (1, 1)


def test_a_chain_of_thousands_in_the_index_hides_no_row() -> None:
    scene = Scene(store=StoreConfig(
        segment=Size(1 << 20), reserve_step=Size(64 * 1024), queue_file_entries=1000, index_slots=3, index_entries=3_000
    ))  # fmt: skip
    rows = scene.some(2_000)
    assert scene.schedule(*rows) == (2_000, 0)
    assert scene.schedule(*scene.some(2_100)) == (100, 2_000)
    assert scene.schedule(*scene.some(2_100)) == (0, 2_100)


# What cannot be scheduled


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Row("", 5), "no unique key"),
        (Row("a\x01b", 5), "a unique key contains byte 1"),
        (Row("a\x00b", 5), "zero byte"),
        (Row("K", 5, keys="a\x02"), "a key contains byte 2"),
        (Row("K", 5, tags="\x02"), "a tag contains byte 2"),
        (Row("K", 5, properties={"a": "b\x02c"}), "wire form"),
        (Row("K", 5, properties={"a": "b\x00"}), "zero byte"),
        (Row("K", 5, properties={"x": "1", "UNIQ_KEY": "y"}), "property UNIQ_KEY"),
        (Row("K", 5, properties={"TIMER_DELAY_SEC": "1"}), "property TIMER_DELAY_SEC"),
        (Row("K", 5, properties={"DELAY": "1"}), "property DELAY"),
        (Row("K", 5, properties={"LMQ_MOVE": "1"}), "property LMQ_MOVE"),
        (Row("K", 5, properties={"a": "x" * 33_000}), "exceed"),
        (Row("K", 5, body=bytes(5 << 20)), "the limit is"),
        (Row("K", -5), "its time is -5"),
        (Row("K", delay_ms=-5), "its time is -5"),
        (Row("K", delay_ms=4_000 * DAY_MS), "timer.max_delay"),
        (Row("K", 1 << 62), "timer.max_delay"),
        (Row("K", 5, topic="no topic"), "illegal characters"),
    ],
)
def test_one_bad_row_keeps_all_away_and_is_named(bad: Row, reason: str) -> None:
    scene = Scene()
    with pytest.raises(IllegalMessage, match="row 2: ") as caught:
        scene.schedule(*scene.some(2), bad, *scene.some(2, first=5))
    assert reason in caught.value.message
    assert scene.waiting() == []


@pytest.mark.parametrize("column", ["unique_keys", "keys", "tags", "properties"])
def test_texts_that_are_no_utf_8_are_named(column: str) -> None:
    scene = Scene()
    rows = [row._replace(keys="k", tags="t", properties={"a": "b"}) for row in scene.some(3)]
    batch = batch_of(rows)
    texts = getattr(batch, column)
    start, end = texts.offsets[1:3].tolist()
    texts.data = texts.data[:start] + b"\xff" * (end - start) + texts.data[end:]
    with pytest.raises(IllegalMessage, match=r"row 1: .* is not valid UTF-8"):
        scene.rows.schedule(batch, HOST)


def test_a_letter_cut_in_two_by_a_row_is_no_text() -> None:
    scene = Scene()
    batch = batch_of([Row("aü", 5), Row("bü", 5)])
    batch.unique_keys.offsets[1] -= 1  # inside the letter
    with pytest.raises(IllegalMessage, match="row 0"):
        scene.rows.schedule(batch, HOST)


def test_names_that_only_look_like_reserved_ones_are_taken() -> None:
    scene = Scene()
    properties = {"MY_KEYS": "1", "LATER": "TIMER_DELAY_SEC", "DELAYED": "DELAY"}
    assert scene.schedule(Row("K", scene.now_ms + 5_000, properties=properties)) == (1, 0)
    assert properties.items() <= scene.waiting()[0].properties.items()


def refused(scene: Scene, rows: Sequence[Row]) -> LaterMQError:
    before = len(scene.waiting())
    with pytest.raises(LaterMQError) as caught:
        scene.schedule(*rows)
    assert len(scene.waiting()) == before
    return caught.value


def test_topics_that_may_not_be_sent_to_are_named_with_their_row() -> None:
    scene = Scene()
    row = Row("K", scene.now_ms + 5_000)
    scene.broker.topics.for_send("closed", "", 8).permissions = 4
    error = refused(scene, [row, row._replace(topic="closed")])
    assert isinstance(error, NoPermission)
    assert "row 1" in error.message
    assert isinstance(refused(scene, [row._replace(topic=TIMER_TOPIC)]), NoPermission)


def test_a_topic_is_not_made_where_none_may_be() -> None:
    scene = Scene()
    config = Config(store=STORE, broker=BrokerConfig(auto_create_topics=False))
    scene.broker = Broker(config, MemoryDisk(), scene.clock, host="127.0.0.1", port=10911, new_store_id="t" * 32)
    scene.rows = scene.broker.row_schedule
    error = refused(scene, scene.some(1))
    assert isinstance(error, TopicNotFound)
    assert "row 0" in error.message


def test_a_full_disk_and_a_stopping_broker_take_no_rows() -> None:
    scene = Scene()
    scene.broker.gate.close("the broker is stopping")
    assert isinstance(refused(scene, scene.some(1)), ServiceUnavailable)


def test_without_space_nothing_is_scheduled_and_later_all_of_it() -> None:
    scene = Scene()
    scene.schedule(*scene.some(1))
    scene.disk.capacity_bytes = scene.disk.used_bytes
    rows = [row._replace(body=bytes(1_000)) for row in scene.some(100)]
    assert isinstance(refused(scene, rows), StoreError)
    scene.disk.capacity_bytes = 1 << 40
    assert scene.schedule(*rows) == (99, 1)


def test_rows_wait_while_too_many_timers_wait_for_the_engine() -> None:
    scene = Scene(TimerConfig(max_waiting=10))
    scene.schedule(*scene.some(10))
    error = refused(scene, scene.some(20))
    assert isinstance(error, FlowControl)
    assert error.retriable
    scene.broker.store.flush()
    run_until_quiet(scene.broker)
    assert scene.schedule(*scene.some(20)) == (10, 10)


def test_a_second_takes_at_most_twice_its_limit() -> None:
    scene = Scene(TimerConfig(slot_limit=10))
    due_ms = (scene.now_ms // 1000 + 60) * 1000
    rows = [Row(f"K{number}", due_ms) for number in range(21)]
    assert isinstance(refused(scene, rows), FlowControl)
    assert scene.schedule(*rows[:20]) == (20, 0)
    assert isinstance(refused(scene, rows), FlowControl)


# Crashes


def test_rows_sent_again_after_a_death_before_the_answer_are_known() -> None:
    scene = Scene()
    rows = scene.some(500)
    scene.schedule(*rows)  # and the answer never comes
    scene.restart(scene.disk.after_process_crash())
    assert scene.schedule(*rows) == (0, 500)
    assert scene.broker.timers.pending["orders"] == 500
    scene.pass_ms(2 * MINUTE_MS)
    assert len(scene.delivered()) == len(set(scene.delivered())) == 500


@pytest.mark.parametrize("seed", range(8))
def test_rows_sent_again_after_a_power_cut_are_there_once_each(seed: int) -> None:
    chance = Random(seed)
    scene = Scene()
    rows = scene.some(300)
    for start in range(0, 300, 60):
        scene.schedule(*rows[start : start + 60])
        if chance.random() < 0.4:
            scene.broker.store.flush()
    safe = scene.broker.store.reader.flushed_end(scene.broker.store.queues.ensure(TIMER_TOPIC, 0))
    scene.restart(scene.disk.after_machine_crash(chance))
    assert len(scene.waiting()) >= safe
    left = len(scene.waiting())
    assert scene.schedule(*rows) == (300 - left, left)
    scene.pass_ms(2 * MINUTE_MS)
    assert scene.delivered() == sorted(row.body for row in rows)


def test_rows_that_were_flushed_survive_a_power_cut() -> None:
    scene = Scene()
    rows = scene.some(100)
    scene.schedule(*rows)
    scene.broker.store.flush()
    scene.restart(scene.disk.after_machine_crash(Random(1)))
    assert scene.schedule(*rows) == (0, 100)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_in_between_each_row_arrives_once_unless_it_was_cancelled(seed: int) -> None:
    chance = Random(seed)
    scene = Scene()
    start_ms = scene.now_ms
    rows = [Row(f"K{number}", start_ms + number * 1_000, body=b"%d" % number) for number in range(40)]
    scheduled: set[str] = set()
    cancelled: set[str] = set()
    for _ in range(60):
        some = chance.sample(rows, chance.randrange(1, 12))
        new = {row.key for row in some} - scheduled
        match chance.randrange(6):
            case 0:
                scene.restart(scene.disk.after_process_crash())
            case 1:
                scene.pass_ms(chance.randrange(1, 1_500))
            case 2:
                if scene.broker.pending.cancel("orders", some[0].key).verdict == Verdict.CANCELLED:
                    cancelled.add(some[0].key)
            case 3:
                scene.broker.pending.move("orders", some[0].key, scene.now_ms + chance.randrange(20_000))
            case _:
                assert scene.schedule(*some) == (len(new), len(some) - len(new))
                scheduled |= new
    scene.pass_ms(120_000)
    expected = [row.body for row in rows if row.key in scheduled - cancelled]
    assert scene.delivered() == sorted(expected)


def test_names_that_many_plain_messages_have_as_a_key_are_refused_and_not_read_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("latermq.broker.timers.known_names.EXTRA_READS", 20)
    scene = Scene()
    for _ in range(30):
        send(scene.broker, b"plain", KEYS="K1")
    with pytest.raises(InvalidParameter, match="stopped"):
        scene.schedule(Row("K1", scene.now_ms + 5_000))
    scene.schedule(Row("K2", scene.now_ms + 5_000))
    assert len(scene.waiting()) == 1
