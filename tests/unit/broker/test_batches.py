"""Batches: the short way of ordinary messages and the long way store the same bytes, or refuse with the same words."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latermq.broker.broker import Broker
from latermq.broker.messages.writer import Sent
from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig, Config, TimerConfig
from latermq.errors import IllegalMessage, LaterMQError, StoreError
from latermq.message.batch import BatchMember, decode_batch, encode_batch
from latermq.message.ids import pack_host
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import OWN_PREFIX
from latermq.message.record_fields import SYSFLAG_FROM_SENDER
from latermq.store import batch_block
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.log_writer import Draft
from latermq.timer.admission import Admitted, Wait
from tests.support.brokers_in_memory import MESSAGE_LIMIT, STORE, run_until_quiet
from tests.unit.broker.test_send_lane import PROPERTIES, START_MS

BORN_MS = 1_700_000_000_000
V4, V6 = pack_host("10.1.2.3", 40_000), pack_host("fe80::1", 40_000)
LATER = f"TIMER_DELIVER_MS\x01{START_MS + 60_000}\x02"
MAX_MESSAGES, MAX_KEYS = 12, 40


class BatchBroker:
    """A broker in memory, and all that a batch leaves behind in it."""

    def __init__(self, timer: TimerConfig | None = None, host: str = "127.0.0.1", *, is_large: bool = False) -> None:
        self.disk, self.clock = MemoryDisk(), SimulatedClock()
        settings = BrokerConfig(max_message=MESSAGE_LIMIT, max_batch_messages=MAX_MESSAGES, max_batch_keys=MAX_KEYS)
        config = Config(store=STORE, timer=timer or TimerConfig(), broker=settings)
        self.broker = Broker(
            Config() if is_large else config, self.disk, self.clock, host=host, port=10911, new_store_id="s" * 32
        )

    def outcome_of(self, send: Callable[..., Sent], *of: Any) -> tuple[Any, ...]:
        """What it answers, or why it refuses."""
        try:
            return send(self.broker, *of)
        except LaterMQError as error:
            return type(error), error.message, error.hint

    def everything(self) -> dict[str, object]:
        """All that batches left, byte for byte."""
        broker, store = self.broker, self.broker.store
        store.pending_keys.put()
        kept = ("commitlog", "consumequeue", "index")
        return {
            "files": {path: content for path, content in self.disk.contents().items() if path.startswith(kept)},
            "log end": store.log.end,
            "queue ends": {(queue.topic, queue.queue_id): queue.next_offset for queue in store.queues},
            "taken in": broker.traffic.messages_in,
            "store time": store.writer.last_store_timestamp_ms,
            "pending": +broker.timers.pending,
            "refused timers": broker.timers.tallies.refused,
            "is to be delivered": broker.timers.noted,
            "statistics": broker.timers.statistics(),
        }


def send_the_long_way(
    broker: Broker, topic: str, queue_id: int, data: bytes, born_host: bytes, sysflag: int, reconsume_times: int
) -> Sent:
    """Each message admitted by itself, each record encoded by itself, as plain as can be."""
    broker.writable_topics.find(topic, "", 8, by=born_host)
    now_ms = broker.clock.now_ms()
    settings = broker.config.broker
    drafts: list[Draft] = []
    places: list[Admitted] = []
    for index, (flag, body, raw) in enumerate(decode_batch(data)):
        if index >= (limit := settings.max_batch_messages):
            raise IllegalMessage(f"the batch contains more than {limit} messages", hint="Send several smaller batches")
        try:
            place = Admitted(topic, queue_id, raw.decode(), Wait.NONE, 0, now_ms)
            if any(sign in place.properties for sign in ("DEL", "TIMER_", OWN_PREFIX)):
                place = broker.admission.admit(topic, queue_id, place.properties, now_ms)
            properties = broker.writer._admit_member(place, body, sysflag)
        except UnicodeDecodeError:
            raise IllegalMessage(f"the properties of message {index} of the batch are not valid UTF-8") from None
        except IllegalMessage as error:
            raise IllegalMessage(f"message {index} of the batch: {error.message}", hint=error.hint) from None
        places.append(place)
        own = (place.topic, place.queue_id, body, properties, BORN_MS, born_host, flag)
        drafts.append(Draft(*own, sysflag & SYSFLAG_FROM_SENDER, reconsume_times))
    if not drafts:
        raise IllegalMessage("the batch contains no message")
    limit = settings.max_batch_keys
    if b" " in data and sum(len(keys_of(draft.properties)) for draft in drafts) > limit:
        raise IllegalMessage(
            f"the messages of the batch have more than {limit} keys", hint="Send several smaller batches"
        )
    broker.store.queues.hold(topic, queue_id)
    if any(place.wait == Wait.TIMER for place in places):
        now_ms = broker.store.writer.monotonic_store_ms(TIMER_TOPIC, now_ms)
    appended = broker.store.writer.append_all(drafts, now_ms)
    for place, one in zip(places, appended, strict=True):
        if place.wait:
            broker.writer._note_waiting(place, topic, one.queue_offset)
    broker.traffic.messages_in += len(drafts)
    ids = ",".join(f"{broker.store_host.hex().upper()}{one.physical_offset:016X}" for one in appended)
    plain = [one for place, one in zip(places, appended, strict=True) if not place.wait]
    return ids, queue_id, (plain or appended)[0].queue_offset, appended[-1].end_offset, ""


def keys_of(properties: bytes) -> list[bytes]:
    """Every key of a record, as often as it is there."""
    keys = []
    for part in properties.split(b"\x02"):
        name, _, value = part.partition(b"\x01")
        keys += [value] if name == b"UNIQ_KEY" else value.split(b" ") if name == b"KEYS" else []
    return [key for key in keys if key]


WAITS = [f"DELAY\x01{level}" for level in ("1", "3", "18", "19", "0", "03", "-1", "x", "1234567890", "")] + [
    f"{name}\x01{due}"
    for name, dues in {
        "TIMER_DELAY_SEC": ("5", "05", "0", "-1", "x", "9" * 12, "9" * 30, "\x015"),
        "TIMER_DELIVER_MS": (str(START_MS), str(START_MS + 1), str(START_MS + 999_999)),
    }.items()
    for due in dues
]
STARTS = ["", "UNIQ_KEY\x01k\x02", "TAGS\x01a\x02KEYS\x01a b\x02", "REAL_QID\x017\x02", LATER, "TIMER_OUT_MS\x011\x02"]
ENDS = [
    "\x02",
    "",
    "\x02REAL_TOPIC\x01t\x02",
    "\x02WAIT\x01",
    "\x02DELAY\x012\x02",
    "\x02LMQ_X\x011",
    "\x02TIMER_DEL_UNIQKEY\x01k",
]
ODD = [f"{start}{wait}{end}" for start in STARTS for wait in WAITS for end in ENDS]
SOUND = st.sampled_from(
    ["", "TAGS\x01a\x02", "UNIQ_KEY\x01é\x02", "DELAY\x013\x02UNIQ_KEY\x01k", LATER, f"UNIQ_KEY\x01k\x02{LATER}"]
)
MEMBERS = st.builds(
    BatchMember,
    st.sampled_from([0, 0, 0, 5, -1, -(1 << 31)]),
    st.binary(max_size=100) | st.just(b""),
    st.one_of(SOUND, SOUND, SOUND, PROPERTIES, st.sampled_from(ODD)).map(str.encode) | st.just(b"\xff"),
)
BATCHES = st.tuples(
    st.lists(MEMBERS, max_size=MAX_MESSAGES + 1).filter(lambda members: len(encode_batch(members)) < MESSAGE_LIMIT),
    st.integers(0, 30),  # bytes that are lost at the end; most often none
    st.sampled_from([V4, V4, V6]),
    st.sampled_from([0, 0, 0, 1, 0x703, 0x30, 4]),
    st.sampled_from([0, 2]),
    st.integers(-2_000, 2_000),
)


@pytest.fixture(params=[1, 1_000], ids=["as a block", "one by one"], autouse=True, scope="module")
def few(request: pytest.FixtureRequest) -> Iterator[None]:
    """Batches of few messages are stored otherwise than those of many; both are to be seen here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_block, "_MANY", request.param)
        yield


@given(
    batches=st.lists(BATCHES, max_size=5),
    timer=st.sampled_from([TimerConfig(), TimerConfig(slot_limit=2), TimerConfig(max_waiting=3)]),
    host=st.sampled_from(["127.0.0.1", "::1"]),
    topic=st.sampled_from(["orders", "o" * 127]),
)
def test_both_ways_store_the_same_bytes_or_none(
    batches: Sequence[tuple[list[BatchMember], int, bytes, int, int, int]], timer: TimerConfig, host: str, topic: str
) -> None:
    quick, long = BatchBroker(timer, host=host), BatchBroker(timer, host=host)
    for members, lost, born_host, sysflag, reconsume_times, step_ms in batches:
        data = encode_batch(members)
        data = data[: len(data) - max(0, lost - 25)]
        assert_alike(quick, long, topic, data, born_host, sysflag, reconsume_times)
        for each in (quick, long):
            each.clock.step(step_ms)
    assert quick.everything() == long.everything()
    for each in (quick, long):
        each.clock.advance(7_300_000)
        run_until_quiet(each.broker)
    assert quick.everything() == long.everything(), "they are delivered alike too"


def assert_alike(
    quick: "BatchBroker",
    long: "BatchBroker",
    topic: str,
    data: bytes,
    born_host: bytes = V4,
    sysflag: int = 0,
    reconsume_times: int = 0,
) -> bool:
    """Send a batch both ways; whether it was taken."""
    before = quick.broker.store.log.end

    def send(broker: Broker, *of: Any) -> Sent:
        return broker.writer.send_batch(
            topic, 1, data, BORN_MS, born_host, sysflag=sysflag, reconsume_times=reconsume_times
        )

    outcome = quick.outcome_of(send)
    assert outcome == long.outcome_of(send_the_long_way, topic, 1, data, born_host, sysflag, reconsume_times)
    is_taken = not isinstance(outcome[0], type)
    assert is_taken == (quick.broker.store.log.end > before), "a refused batch leaves nothing"
    return is_taken


def test_whatever_a_delay_is_written_like_both_ways_take_it_for_the_same() -> None:
    quick, long = BatchBroker(), BatchBroker()
    sound = BatchMember(0, b"", f"UNIQ_KEY\x01k\x02{LATER}".encode())
    taken = [
        assert_alike(quick, long, "orders", encode_batch([sound, BatchMember(1, b"odd", text.encode()), sound]))
        for text in ODD
    ]
    assert len(ODD) // 3 < sum(taken) < len(ODD)
    assert quick.everything() == long.everything()


def test_a_batch_that_the_disk_has_no_room_for_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = BatchBroker().broker
    data = encode_batch(
        [BatchMember(0, b"x", LATER.encode()), BatchMember(0, b"y", b"DELAY\x013\x02"), BatchMember(0, b"", b"")]
    )
    before = broker.writer.send_batch("orders", 1, data, BORN_MS, V4)

    def refuse(*of: Any) -> None:
        raise StoreError("no space", hint="")

    with monkeypatch.context() as patch:
        patch.setattr(broker.store.log, "place", refuse)
        with pytest.raises(StoreError):
            broker.writer.send_batch("orders", 1, data, BORN_MS, V4)
    assert (broker.timers.pending, broker.traffic.messages_in) == ({"orders": 1}, 3)
    after = broker.writer.send_batch("orders", 1, data, BORN_MS, V4)
    assert after[2] == before[2] + 1
    assert after[3] - before[3] == before[3], "it follows the first one"


@pytest.mark.parametrize("wait", [LATER, "TIMER_DELAY_SEC\x0160\x02", "DELAY\x013\x02", ""])
def test_a_batch_takes_less_than_two_thirds_of_the_time_of_its_messages(wait: str) -> None:
    """A ratio, in time of this thread, because other processes share the machine; it is a third in a quiet moment."""
    quick, long = BatchBroker(is_large=True), BatchBroker(is_large=True)
    spent_s: dict[BatchBroker, list[float]] = {quick: [], long: []}
    for turn in range(4):
        data = encode_batch(
            [
                BatchMember(0, b"x" * 100, f"UNIQ_KEY\x01{turn}-{number:030}\x02{wait}".encode())
                for number in range(3_000)
            ]
        )
        for each in (quick, long):
            started_s = time.thread_time()
            if each is quick:
                each.broker.writer.send_batch("orders", 1, data, BORN_MS, V4)
            else:
                send_the_long_way(each.broker, "orders", 1, data, V4, 0, 0)
            each.broker.store.pending_keys.put()
            spent_s[each].append(time.thread_time() - started_s)
    assert min(spent_s[quick]) < 2 / 3 * min(spent_s[long])
    assert quick.everything() == long.everything()
