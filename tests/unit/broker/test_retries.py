"""Retries and dead letters with a simulated clock: the ladder of delays, every end of it, and every refusal."""

from typing import Any

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.errors import (
    GroupNotFound,
    IllegalMessage,
    InvalidParameter,
    MessageNotFound,
    NoPermission,
    ServiceUnavailable,
)
from latermq.group.retry_backoff import next_wait, parse_backoff
from latermq.message.names import SCHEDULE_TOPIC
from latermq.message.properties import DEAD_LETTER_REASON, MAX_PROPERTIES_BYTES, encode_properties
from latermq.message.record import Message
from latermq.message.record_fields import SYSFLAG_COMPRESSED
from latermq.message.tags import tags_code
from latermq.model.group import Group
from latermq.model.topic import READ, WRITE, Topic
from latermq.protocol.remoting.frames import VERSION
from latermq.protocol.remoting.send import SendBackHeader, SendHeaderV2, read_retry, read_send_back
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import HOST, STAMP, bodies, messages, open_broker, pass_time, send

GROUP = "billing"
RETRY = "%RETRY%billing"
DEAD = "%DLQ%billing"
OLD_VERSION = 120  # before clients told how often a message may be tried
LADDER_MS = [
    10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000, 420_000, 480_000, 540_000, 600_000,
    1_200_000, 1_800_000, 3_600_000, 7_200_000,
]  # fmt: skip


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def broker(disk: MemoryDisk, clock: SimulatedClock) -> Broker:
    broker = open_broker(disk, clock)
    broker.groups.put(Group(name=GROUP))
    return broker


def send_back(
    broker: Broker,
    message: Message,
    *,
    level: int = 0,
    group: str = GROUP,
    max_times: int | None = None,
    version: int = VERSION,
) -> int:
    header = SendBackHeader(
        offset=message.physical_offset, group=group, delayLevel=level, originTopic=message.topic,
        maxReconsumeTimes=max_times,
    )  # fmt: skip
    return broker.retries.send_back(read_send_back(header, version))


def send_retry(
    broker: Broker,
    body: bytes,
    properties: dict[str, str],
    *,
    times: int,
    max_times: int | None = 16,
    version: int = VERSION,
    topic: str = RETRY,
) -> None:
    """What a client does when its send-back failed."""
    header = SendHeaderV2(
        topic=topic, queueId=0, properties=encode_properties(properties), bornTimestamp=5, reconsumeTimes=times,
        maxReconsumeTimes=max_times,
    )  # fmt: skip
    broker.retries.send(read_retry(header, version), body, HOST)


def sent(broker: Broker, body: bytes = b"order", **properties: str) -> Message:
    broker.writer.send("orders", 0, body, encode_properties(properties), 1_700_000_000_000, HOST)
    return messages(broker)[-1]


# The ladder


def test_a_failed_message_climbs_from_ten_seconds_to_two_hours_and_ends_as_a_dead_letter(
    broker: Broker, clock: SimulatedClock
) -> None:
    message = sent(broker, TAGS="red", KEYS="4711")
    first = message
    for times, wait_ms in enumerate(LADDER_MS):
        send_back(broker, message)
        pass_time(broker, clock, wait_ms - 1)
        assert len(messages(broker, RETRY)) == times
        pass_time(broker, clock, 1)
        message = messages(broker, RETRY)[-1]
        assert message.reconsume_times == times + 1
    send_back(broker, message)
    pass_time(broker, clock, 7_200_000)
    assert len(messages(broker, RETRY)) == 16
    [dead] = messages(broker, DEAD)
    assert (dead.body, dead.reconsume_times, dead.queue_id) == (b"order", 17, 0)
    assert dead.properties == {
        "TAGS": "red", "KEYS": "4711", "RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": first.message_id, "WAIT": "false",
        **STAMP, DEAD_LETTER_REASON: "attempt 17 failed, the limit is 16 retries",
    }  # fmt: skip


def test_a_waiting_retry_is_stored_as_rocketmq_stores_it(broker: Broker, clock: SimulatedClock) -> None:
    message = sent(broker, TAGS="red", mine="yes")
    send_back(broker, message)
    [waiting] = messages(broker, SCHEDULE_TOPIC, 2)
    wanted = {
        "TAGS": "red", "mine": "yes", "RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": message.message_id, "WAIT": "false",
        "DELAY": "3", "REAL_TOPIC": RETRY, "REAL_QID": "0",
    }  # fmt: skip
    assert wanted.items() <= waiting.properties.items()
    assert (waiting.born_timestamp_ms, waiting.born_host) == (message.born_timestamp_ms, message.born_host)
    assert (waiting.flag, waiting.sysflag, waiting.reconsume_times) == (message.flag, message.sysflag, 1)
    pass_time(broker, clock, 10_000)
    queue = broker.store.queues.find(RETRY, 0)
    assert queue is not None
    entry = queue.entry(0)
    assert entry is not None
    assert entry[2] == tags_code("red")


def test_the_origin_stays_the_same_over_all_retries(broker: Broker, clock: SimulatedClock) -> None:
    first = sent(broker)
    message = first
    for _ in range(3):
        send_back(broker, message, level=1)
        pass_time(broker, clock, 1_000)
        message = messages(broker, RETRY)[-1]
        assert message.properties["ORIGIN_MESSAGE_ID"] == first.message_id
        assert message.properties["RETRY_TOPIC"] == "orders"


def test_a_retry_keeps_nothing_of_an_earlier_wait(broker: Broker, clock: SimulatedClock) -> None:
    send(broker, b"was delayed", DELAY="5", KEYS="k")
    pass_time(broker, clock, 60_000)
    [message] = messages(broker)
    assert "LMQ_DUE_MS" in message.properties
    send_back(broker, message, level=1)
    [waiting] = messages(broker, SCHEDULE_TOPIC, 0)
    assert (waiting.properties["DELAY"], waiting.properties["REAL_TOPIC"]) == ("1", RETRY)
    assert waiting.properties["LMQ_DUE_MS"] == str(clock.now_ms() + 1_000)
    pass_time(broker, clock, 1_000)
    send_back(broker, messages(broker, RETRY)[0], level=-1)
    [dead] = messages(broker, DEAD)
    assert set(dead.properties) == {*STAMP, "KEYS", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "WAIT", DEAD_LETTER_REASON}


@pytest.mark.parametrize(("level", "waits_ms"), [(1, 1_000), (4, 30_000), (18, 7_200_000), (99, 7_200_000)])
def test_a_level_that_the_consumer_names_is_the_level(
    broker: Broker, clock: SimulatedClock, level: int, waits_ms: int
) -> None:
    send_back(broker, sent(broker), level=level)
    pass_time(broker, clock, waits_ms - 1)
    assert messages(broker, RETRY) == []
    pass_time(broker, clock, 1)
    assert bodies(broker, RETRY) == [b"order"]


def test_the_highest_level_that_a_header_can_name_is_the_last(broker: Broker) -> None:
    send_back(broker, sent(broker), level=2**31 - 1)
    assert bodies(broker, SCHEDULE_TOPIC, 17) == [b"order"]


def test_a_negative_level_is_a_dead_letter_at_once(broker: Broker) -> None:
    send_back(broker, sent(broker), level=-1)
    [dead] = messages(broker, DEAD)
    assert (dead.reconsume_times, dead.properties[DEAD_LETTER_REASON]) == (1, "its consumer gave up on it")
    topic = broker.topics.require(DEAD)
    assert (topic.read_queues, topic.write_queues, topic.permissions) == (1, 1, READ | WRITE)


@pytest.mark.parametrize(
    ("group_limit", "asked", "version", "is_dead"),
    [
        (0, None, VERSION, True),
        (1, None, VERSION, False),
        (16, 0, VERSION, True),
        (0, 16, VERSION, False),
        (16, 0, OLD_VERSION, False),
        (0, 16, OLD_VERSION, True),
        (16, -1, VERSION, True),
    ],
)
def test_the_group_limits_the_retries_unless_a_client_that_knows_how_asks_otherwise(
    broker: Broker, group_limit: int, asked: int | None, version: int, is_dead: bool
) -> None:
    broker.groups.put(Group(name=GROUP, max_retries=group_limit))
    send_back(broker, sent(broker), max_times=asked, version=version)
    assert bool(messages(broker, DEAD)) == is_dead
    assert bool(messages(broker, SCHEDULE_TOPIC, 2)) != is_dead


def test_retries_go_round_the_queues_of_the_retry_topic(broker: Broker, clock: SimulatedClock) -> None:
    broker.groups.put(Group(name=GROUP, retry_queues=3))
    for number in range(6):
        send_back(broker, sent(broker, b"%d" % number), level=1)
    assert broker.topics.require(RETRY).read_queues == 3
    # A group that got more queues later has them when its retry topic has: nobody reads from the others.
    broker.groups.put(Group(name=GROUP, retry_queues=8))
    for number in range(6, 12):
        send_back(broker, sent(broker, b"%d" % number), level=1)
    pass_time(broker, clock, 1_000)
    assert [len(messages(broker, RETRY, queue_id)) for queue_id in range(3)] == [4, 4, 4]


def test_a_group_without_retry_queues_drops_what_it_sends_back(broker: Broker) -> None:
    broker.groups.put(Group(name=GROUP, retry_queues=0))
    end = broker.store.log.end
    assert send_back(broker, sent(broker), level=-1) == 0
    assert broker.topics.find(RETRY) is None
    assert broker.topics.find(DEAD) is None
    assert len(messages(broker)) == 1
    assert broker.store.log.end > end  # the send itself


def test_a_compressed_body_stays_as_it_is_and_a_transaction_becomes_an_ordinary_message(
    broker: Broker, clock: SimulatedClock
) -> None:
    committed = SYSFLAG_COMPRESSED | 0x8
    broker.topics.for_send("orders", "TBW102", 4)
    broker.store.writer.append("orders", 0, b"packed", b"", 1, HOST, 7, committed)
    [message] = messages(broker)
    send_back(broker, message, level=1)
    pass_time(broker, clock, 1_000)
    [again] = messages(broker, RETRY)
    assert (again.body, again.flag, again.sysflag) == (b"packed", 7, SYSFLAG_COMPRESSED)
    send_back(broker, message, level=-1)
    assert messages(broker, DEAD)[0].sysflag == SYSFLAG_COMPRESSED


def test_a_retry_survives_the_death_of_the_process(disk: MemoryDisk, broker: Broker, clock: SimulatedClock) -> None:
    send_back(broker, sent(broker))
    broker = open_broker(disk.after_process_crash(), clock)
    pass_time(broker, clock, 10_000)
    assert bodies(broker, RETRY) == [b"order"]


# Refusals


def test_a_group_that_does_not_exist_is_refused_where_groups_are_not_made_on_the_way(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = sent(broker)
    send_back(broker, message, group="newcomer")
    assert broker.groups.find("newcomer") is not None
    monkeypatch.setattr(broker.groups, "_auto_create", False)
    with pytest.raises(GroupNotFound) as refused:
        send_back(broker, message, group="stranger")
    assert refused.value.code == 26
    with pytest.raises(GroupNotFound):
        send_retry(broker, b"x", {"DELAY": "3"}, times=1, topic="%RETRY%stranger")


@pytest.mark.parametrize("group", ["", "no such name", "g" * 121])
def test_a_group_with_an_illegal_name_is_refused(broker: Broker, group: str) -> None:
    with pytest.raises(IllegalMessage):
        send_back(broker, sent(broker), group=group)


def test_a_retry_topic_that_may_not_be_written_to_is_refused(broker: Broker) -> None:
    message = sent(broker)
    broker.topics.put(Topic(name=RETRY, read_queues=1, write_queues=1, permissions=READ))
    for level in (0, -1):
        with pytest.raises(NoPermission) as refused:
            send_back(broker, message, level=level)
        assert refused.value.code == 16


def test_a_message_that_is_gone_cannot_be_sent_back(broker: Broker) -> None:
    message = sent(broker)
    for offset in (message.physical_offset + 1, broker.store.log.end, -1, 1 << 60):
        message.physical_offset = offset
        with pytest.raises(MessageNotFound) as refused:
            send_back(broker, message)
        assert refused.value.code == 1


def fill(monkeypatch: pytest.MonkeyPatch, broker: Broker, used: float) -> None:
    monkeypatch.setattr(broker.store, "used_ratio", lambda: used)
    broker.gate.check_disk()


def test_above_the_first_mark_of_the_disk_retries_go_on_and_above_the_second_only_deliveries(
    broker: Broker, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = sent(broker)
    fill(monkeypatch, broker, 0.90)
    with pytest.raises(ServiceUnavailable, match="new messages are refused"):
        sent(broker)
    with pytest.raises(ServiceUnavailable, match="new messages are refused"):
        send_retry(broker, b"no retry at all", {"DELAY": "1"}, times=0)
    send_back(broker, message, level=1)
    send_back(broker, message, level=-1)
    send_retry(broker, b"by hand", {"DELAY": "1"}, times=1)
    send_retry(broker, b"too often", {"DELAY": "1"}, times=17)
    fill(monkeypatch, broker, 0.96)
    for level in (1, -1):
        with pytest.raises(ServiceUnavailable, match="retries are refused above 95%"):
            send_back(broker, message, level=level)
    for times in (1, 17):
        with pytest.raises(ServiceUnavailable, match="retries are refused"):
            send_retry(broker, b"x", {"DELAY": "1"}, times=times)
    pass_time(broker, clock, 1_000)
    assert bodies(broker, RETRY) == [b"order", b"by hand"]
    assert bodies(broker, DEAD) == [b"order", b"too often"]
    fill(monkeypatch, broker, 0.5)
    send_back(broker, message, level=1)


def test_a_broker_that_stops_takes_no_retries(broker: Broker) -> None:
    message = sent(broker)
    broker.gate.close("the broker is stopping")
    with pytest.raises(ServiceUnavailable, match="stopping"):
        send_back(broker, message)


def test_a_body_above_the_limit_of_today_can_still_be_retried_but_not_sent(
    broker: Broker, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = sent(broker, b"x" * 2_000)
    monkeypatch.setattr(broker.limits, "max_body", 1_000)
    send_back(broker, message, level=1)
    pass_time(broker, clock, 1_000)
    assert bodies(broker, RETRY) == [b"x" * 2_000]
    with pytest.raises(IllegalMessage, match="the limit is"):
        send_retry(broker, b"x" * (int(broker.config.broker.max_message) + 1), {"DELAY": "1"}, times=17)


def test_a_dead_letter_without_room_for_its_reason_is_a_dead_letter_all_the_same(broker: Broker) -> None:
    message = sent(broker)
    room = MAX_PROPERTIES_BYTES - len(encode_properties({"large": "", "RETRY_TOPIC": "orders"} | STAMP)) - 100
    message = sent(broker, large="x" * room)
    send_back(broker, message, level=-1)
    [dead] = messages(broker, DEAD)
    assert len(dead.properties["large"]) == room
    assert DEAD_LETTER_REASON not in dead.properties
    message = sent(broker, large="x" * (room + 90))
    with pytest.raises(IllegalMessage, match="the properties take"):
        send_back(broker, message, level=-1)


# Clients that put retries by themselves


def test_a_client_that_could_not_send_back_puts_the_message_into_the_retry_topic(
    broker: Broker, clock: SimulatedClock
) -> None:
    stale = {"LMQ_DUE_MS": "9", "TIMER_DELIVER_MS": "99999999999999", "TIMER_OUT_MS": "7", "REAL_TOPIC": "orders"}
    send_retry(broker, b"again", {"DELAY": "3", "RETRY_TOPIC": "orders", "mine": "yes", **stale}, times=1)
    pass_time(broker, clock, 9_999)
    assert messages(broker, RETRY) == []
    pass_time(broker, clock, 1)
    [message] = messages(broker, RETRY)
    assert (message.body, message.reconsume_times) == (b"again", 1)
    assert set(message.properties) == {
        "DELAY", "RETRY_TOPIC", "mine", "REAL_TOPIC", "REAL_QID", "LMQ_DUE_MS"
    }  # fmt: skip


def test_a_retry_without_a_level_comes_at_once(broker: Broker) -> None:
    send_retry(broker, b"again", {"RETRY_TOPIC": "orders"}, times=1)
    assert bodies(broker, RETRY) == [b"again"]


@pytest.mark.parametrize(
    ("times", "max_times", "version", "is_dead"),
    [
        (16, 16, VERSION, False),
        (17, 16, VERSION, True),
        (3, 2, VERSION, True),
        (3, 2, OLD_VERSION, False),
        (17, None, VERSION, True),
        (16, None, VERSION, False),
        (0, None, VERSION, False),
    ],
)
def test_a_retry_that_a_client_puts_too_often_is_a_dead_letter(
    broker: Broker, times: int, max_times: int | None, version: int, is_dead: bool
) -> None:
    properties = {"DELAY": "5", "RETRY_TOPIC": "orders", "KEYS": "k"}
    send_retry(broker, b"again", properties, times=times, max_times=max_times, version=version)
    assert bool(messages(broker, SCHEDULE_TOPIC, 4)) != is_dead
    if is_dead:
        [dead] = messages(broker, DEAD)
        assert (dead.body, dead.reconsume_times, dead.born_timestamp_ms) == (b"again", times, 5)
        assert dead.properties == {"RETRY_TOPIC": "orders", "KEYS": "k", DEAD_LETTER_REASON: _reason(times, max_times)}


def _reason(times: int, max_times: int | None) -> str:
    return f"attempt {times} failed, the limit is {16 if max_times is None else max_times} retries"


def test_what_a_group_in_order_gives_back_is_a_dead_letter(broker: Broker, clock: SimulatedClock) -> None:
    broker.locks.lock(GROUP, "member", [("orders", 0)])
    send_retry(broker, b"in order", {"DELAY": "5"}, times=2)
    [dead] = messages(broker, DEAD)
    assert (dead.body, dead.reconsume_times) == (b"in order", 2)
    assert "in order" in dead.properties[DEAD_LETTER_REASON]
    clock.advance(61_000)  # nobody renewed the lock
    send_retry(broker, b"not any more", {"DELAY": "5"}, times=2)
    assert bodies(broker, SCHEDULE_TOPIC, 4) == [b"not any more"]


def test_a_dead_letter_with_properties_that_no_message_may_have_is_refused(broker: Broker) -> None:
    with pytest.raises(IllegalMessage, match="zero byte"):
        send_retry(broker, b"x", {"mine": "\0"}, times=17)


# A group's own back-off


def with_levels(broker: Broker, **attributes: str) -> Group:
    changes = {name.replace("plus_", "+").replace("minus_", "-").replace("_", "."): v for name, v in attributes.items()}
    broker.group_admin.put(Group(name=GROUP, attributes=changes))
    group = broker.groups.find(GROUP)
    assert group is not None
    return group


def test_a_group_with_levels_of_its_own_waits_by_them(broker: Broker, clock: SimulatedClock) -> None:
    with_levels(broker, plus_retry_levels="1,2,1")
    message = sent(broker)
    for wait_ms in (1_000, 5_000, 1_000, 1_000):
        count = len(messages(broker, RETRY))
        send_back(broker, message)
        pass_time(broker, clock, wait_ms - 1)
        assert len(messages(broker, RETRY)) == count
        pass_time(broker, clock, 1)
        message = messages(broker, RETRY)[-1]
    assert message.reconsume_times == 4
    send_back(broker, message, level=4)
    assert bodies(broker, SCHEDULE_TOPIC, 3) == [b"order"]


def test_a_group_may_wait_by_times_of_its_own(broker: Broker, clock: SimulatedClock) -> None:
    with_levels(broker, plus_retry_levels="250ms 3s")
    message = sent(broker)
    for wait_ms in (250, 3_000, 3_000):
        count = len(messages(broker, RETRY))
        send_back(broker, message)
        pass_time(broker, clock, wait_ms - 1)
        assert len(messages(broker, RETRY)) == count
        pass_time(broker, clock, 1)
        message = messages(broker, RETRY)[-1]
    assert message.reconsume_times == 3


def test_attributes_are_changed_kept_removed_and_checked(
    broker: Broker, disk: MemoryDisk, clock: SimulatedClock
) -> None:
    assert with_levels(broker, plus_retry_levels="3, 4,5").attributes == {"retry.levels": "3 4 5"}
    assert with_levels(broker).attributes == {"retry.levels": "3 4 5"}
    assert with_levels(broker, retry_levels="7").attributes == {"retry.levels": "7"}
    for wrong in ("", "0", "64", "x", "1.5", "-1", " ".join(["1"] * 65)):
        with pytest.raises(InvalidParameter):
            with_levels(broker, plus_retry_levels=wrong)
    with pytest.raises(InvalidParameter, match="not a valid change of a group's attribute"):
        with_levels(broker, plus_colour="red")
    broker.tables.save()
    again = open_broker(disk.after_process_crash(), clock)
    kept = again.groups.find(GROUP)
    assert kept is not None
    assert next_wait(kept, 9) == ("DELAY", "7")
    assert with_levels(broker, minus_retry_levels="").attributes == {}


def test_without_levels_of_its_own_a_group_climbs_from_level_three() -> None:
    group: Any = Group(name=GROUP)
    assert [next_wait(group, failures)[1] for failures in range(4)] == ["3", "4", "5", "6"]
    assert parse_backoff("1 2,3 500ms") == ("1", "2", "3", "500ms")
