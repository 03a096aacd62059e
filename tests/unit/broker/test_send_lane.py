"""The send lane and the long way: the same records, queue entries, index keys and replies, whatever is sent."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig, Config, Size, StoreConfig, TimerConfig
from latermq.errors import StoreError
from latermq.message.properties import encode_properties
from latermq.model.topic import Topic
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import (
    BINARY,
    FLAG_ONEWAY,
    JSON,
    Command,
    FrameReader,
    encode_frame,
)
from latermq.protocol.remoting.send import SendRequest
from latermq.server.broker.composition import broker_service
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.listener import Listener
from latermq.server.remoting.send_lane import MESSAGES_PER_RUN, SendLane
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.index.pending_keys import INDEX_BATCH
from latermq.store.log_writer import PlainMessage
from tests.support.brokers_in_memory import MESSAGE_LIMIT, STORE
from tests.support.collecting_transport import CollectingTransport

QUEUES = 3
READ_BYTES = 100_000  # an event loop brings no more than 256 KiB at once


class NotingLane:
    """Notes what the lane takes."""

    def __init__(self, lane: SendLane) -> None:
        self._lane = lane
        self.taken: list[int] = []

    def serve_runs(self, connection: Connection, commands: list[Command], at: int, replies: list[bytes]) -> int:
        end = self._lane.serve_runs(connection, commands, at, replies)
        self.taken += [command.opaque for command in commands[at:end]]
        return end


class Way:
    """A broker of its own, and a connection into it with the lane or without."""

    def __init__(
        self,
        *,
        with_lane: bool = True,
        store: StoreConfig = STORE,
        timer: TimerConfig | None = None,
        peer: tuple[str, int] = ("10.1.2.3", 40_000),
    ) -> None:
        config = Config(store=store, timer=timer or TimerConfig(), broker=BrokerConfig(max_message=MESSAGE_LIMIT))
        self.clock = SimulatedClock()
        self.disk = MemoryDisk()
        self.broker = Broker(config, self.disk, self.clock, host="127.0.0.1", port=10911, new_store_id="s" * 32)
        for topic in ("orders", "%RETRY%group", "%odd"):
            self.broker.topics.put(Topic(name=topic, read_queues=QUEUES, write_queues=QUEUES))
        self.turns = 0
        self.service = broker_service(self.broker, between_requests=self._give_turn)
        self.listener = Listener(self.service, config.server, self.clock)
        self.transport = CollectingTransport(peer)
        self.connection = Connection(self.service, self.listener)
        self.connection.connection_made(self.transport)
        self.lane: NotingLane | None = None
        lane = self.connection.lanes.get(SendRequest)
        if with_lane and isinstance(lane, SendLane):
            self.lane = NotingLane(lane)
        self.connection.lanes = {SendRequest: self.lane} if self.lane is not None else {}

    def _give_turn(self) -> None:
        self.turns += 1

    def receive(self, *frames: bytes) -> None:
        data = b"".join(frames)
        for at in range(0, len(data), READ_BYTES):
            self.connection.data_received(data[at : at + READ_BYTES])

    def replies(self) -> list[Command]:
        return FrameReader().feed(self.transport.written)

    @property
    def taken(self) -> list[int]:
        """The opaques of what the lane took."""
        return self.lane.taken if self.lane else []

    def everything(self) -> dict[str, object]:
        """All that a message leaves behind, byte for byte."""
        store = self.broker.store
        store.pending_keys.put()
        files = {
            path: content
            for path, content in self.disk.contents().items()
            if path.startswith(("commitlog", "consumequeue", "index"))
        }
        return {
            "files": files,
            "replies": self.transport.written,
            "log end": store.log.end,
            "queue ends": {(queue.topic, queue.queue_id): queue.next_offset for queue in store.queues},
            "taken in": self.broker.traffic.messages_in,
            "store time": store.writer.last_store_timestamp_ms,
            "received": self.listener.received_frames,
            "topics": self.broker.topics.names(),
            "pending": +self.broker.timers.pending,
            "refused timers": self.broker.timers.tallies.refused,
            "is to be delivered": self.broker.timers.noted,
        }


def send_frame(
    opaque: int = 1, body: bytes = b"body", *, flag: int = 0, encoding: int = JSON, properties: str = "", **fields: str
) -> bytes:
    texts = {
        "a": "senders", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
        "i": properties, "j": "0", "k": "false", "m": "false", "n": "broker-a", **fields,
    }  # fmt: skip
    return encode_frame(Request.SEND_MESSAGE_V2, opaque, flag=flag, encoding=encoding, fields=texts, body=body)


TEXTS = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12)
NAMES = st.sampled_from(
    ["UNIQ_KEY", "KEYS", "TAGS", "WAIT", "color", "XTAGS", "DELAY", "TIMER_DELAY_MS", "LMQ_DUE_MS", "TIMER_OUT_MS"]
)
START_MS = SimulatedClock().now_ms()
TIMES = ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "__STARTDELIVERTIME"]
DUES = st.integers(-2, 5_000).map(lambda ms: str(START_MS + ms)) | st.sampled_from(
    ["0", "1", "1000", "86400000", "00007", "-1", "x", "²", "9" * 18, "9" * 30]
)
TIMERS = st.builds(
    lambda key, rest, dues, end: (
        encode_properties({"UNIQ_KEY": key, **rest, **dues}).rstrip("\x02" if end else "") + end
    ),
    TEXTS,
    st.dictionaries(
        NAMES | st.sampled_from(["REAL_TOPIC", "TIMER_DEL_UNIQKEY", "TIMER_ROLL_TIMES"]), TEXTS, max_size=2
    ),
    st.dictionaries(st.sampled_from(TIMES), DUES, min_size=1, max_size=2),
    st.sampled_from(["", "", "", "\x02\x02", "\x02WAIT\x01", "\x02WAIT"]),
)
PROPERTIES = st.one_of(
    TIMERS,
    st.dictionaries(st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "WAIT", "color"]), TEXTS).map(encode_properties),
    st.dictionaries(NAMES, TEXTS | st.sampled_from(["1", "3", "key one two", "a\0b"])).map(encode_properties),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.sampled_from(["TAGS\x01a\x02TAGS\x01b", "i\x01" + "x" * 33_000]),
)
RARE_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "b": st.sampled_from(["orders", "new-topic", "%RETRY%group", "%odd", "SELF_TEST_TOPIC", "", "with space"]),
        "d": st.sampled_from(["1", "x"]),
        "e": st.sampled_from(["-1", "2", "3", "99999999999", "x"]),
        "f": st.sampled_from(["1", "4", "16", "32", "1795", "-13"]),
        "g": st.sampled_from(["0", "-1", str(1 << 63)]),
        "h": st.sampled_from(["-5", "7"]),
        "j": st.sampled_from(["3", "-1"]),
        "m": st.sampled_from(["true", "maybe"]),
    },
)
SENDS = st.builds(
    lambda properties, body, flag, encoding, fields: (properties, body, flag, encoding, fields),
    PROPERTIES,
    st.binary(max_size=300) | st.sampled_from([b"x" * 20_000, b"x" * (MESSAGE_LIMIT + 1)]),
    st.sampled_from([0, 0, 0, 0, 0, 0, FLAG_ONEWAY, 4]),
    st.sampled_from([JSON, JSON, JSON, JSON, JSON, BINARY]),
    st.just({}) | st.builds(lambda queue: {"e": str(queue)}, st.integers(0, QUEUES - 1)) | RARE_FIELDS,
)


@given(reads=st.lists(st.tuples(st.lists(SENDS, max_size=8), st.integers(0, 2_000)), max_size=6))
def test_both_ways_store_and_answer_the_same_bytes(reads: Sequence[Any]) -> None:
    quick, long = Way(), Way(with_lane=False)
    opaque = 0
    for sends, pause_ms in reads:
        frames = b""
        for properties, body, flag, encoding, fields in sends:
            opaque += 1
            frames += send_frame(opaque, body, flag=flag, encoding=encoding, properties=properties, **fields)
        for way in (quick, long):
            way.clock.advance(pause_ms)
            # A read may end anywhere; the first byte of the next one completes nothing.
            cut = len(frames) * 2 // 3
            way.receive(frames[:cut])
            way.receive(frames[cut:])
    assert quick.everything() == long.everything()


def test_plain_messages_take_the_lane_once_their_topic_is_open() -> None:
    way = Way()
    plain = [send_frame(opaque, properties="UNIQ_KEY\x01k\x02TAGS\x01red") for opaque in range(1, 11)]
    way.receive(*plain)
    assert [reply.opaque for reply in way.replies()] == list(range(1, 11))
    assert way.taken == list(range(2, 11))  # the first one opened the topic


def timer_frame(opaque: int, due: str, rest: str = "", sysflag: str = "0") -> bytes:
    return send_frame(opaque, properties=f"UNIQ_KEY\x01k{opaque}\x02{due}\x02{rest}", f=sysflag)


LATER = f"TIMER_DELIVER_MS\x01{START_MS + 60_000}"


@pytest.mark.parametrize(
    "due", [LATER, "TIMER_DELAY_SEC\x017", "TIMER_DELAY_MS\x017", f"__STARTDELIVERTIME\x01{START_MS + 7}"]
)
def test_ordinary_timers_take_the_lane_between_plain_messages(due: str) -> None:
    way, long = Way(), Way(with_lane=False)
    for each in (way, long):
        each.receive(*(timer_frame(n, due, "TAGS\x01a") if n % 3 else send_frame(n) for n in range(1, 31)))
    assert way.taken == list(range(2, 31))
    assert way.broker.timers.pending == {"orders": 20}
    assert way.everything() == long.everything()
    handles = [reply.text_fields().get("recallHandle") for reply in way.replies()]
    assert [handle is not None for handle in handles] == [n % 3 != 0 for n in range(1, 31)]


def test_timers_that_find_no_room_are_refused_as_on_the_long_way() -> None:
    ways = Way(timer=TimerConfig(max_waiting=5)), Way(timer=TimerConfig(max_waiting=5), with_lane=False)
    for way in ways:
        way.receive(send_frame(1), *(timer_frame(n, LATER) for n in range(2, 12)), send_frame(12))
        codes = [reply.code for reply in way.replies()]
        assert codes == [Response.SUCCESS] * 6 + [Response.SYSTEM_ERROR] * 5 + [Response.SUCCESS]
    assert ways[0].taken == [*range(2, 7), 12]
    assert ways[0].everything() == ways[1].everything()


def test_where_seconds_have_a_limit_each_timer_is_looked_at() -> None:
    way = Way(timer=TimerConfig(slot_limit=1))
    way.receive(send_frame(1), *(timer_frame(n, LATER) for n in range(2, 5)))
    assert way.taken == []
    assert [reply.code for reply in way.replies()].count(Response.SUCCESS) < 4


def test_where_the_clock_was_set_back_store_times_of_timers_stand_still() -> None:
    ways = Way(), Way(with_lane=False)
    for way in ways:
        way.clock.advance(5_000)
        way.receive(send_frame(1), timer_frame(2, LATER))
        way.clock.step(-3_000)
        way.receive(timer_frame(3, LATER), send_frame(4))
    assert ways[0].taken == [2, 4]
    assert ways[0].everything() == ways[1].everything()


@pytest.mark.parametrize(
    "frame",
    [
        timer_frame(9, f"TIMER_DELIVER_MS\x01{START_MS}"),
        timer_frame(9, "TIMER_DELIVER_MS\x01soon"),
        timer_frame(9, f"TIMER_DELAY_SEC\x01{400 * 366 * 86_400}"),
        timer_frame(9, LATER, "DELAY\x013"),
        timer_frame(9, LATER, "TIMER_DEL_UNIQKEY\x01k"),
        timer_frame(9, LATER, "REAL_TOPIC\x01other"),
        timer_frame(9, LATER, LATER),
        timer_frame(9, LATER, "a\x01" + "x" * 32_600),
        timer_frame(9, LATER, sysflag="4"),
        send_frame(9, properties=LATER),
        send_frame(9, properties="DELAY\x013\x02"),
        send_frame(9, properties="TIMER_OUT_MS\x011\x02"),
        send_frame(9, properties="LMQ_X\x011\x02"),
        send_frame(9, properties="a\x01b\0c\x02"),
        send_frame(9, b="new-topic"),
        send_frame(9, b="%RETRY%group"),
        send_frame(9, b="%odd"),
        send_frame(9, e="-1"),
        send_frame(9, f="4"),
        send_frame(9, m="true"),
        send_frame(9, flag=FLAG_ONEWAY),
        send_frame(9, encoding=BINARY),
        send_frame(9, b"x" * (MESSAGE_LIMIT + 1)),
        encode_frame(Request.HEART_BEAT, 9, body=b"{}"),
    ],
)
def test_everything_else_goes_the_long_way_in_its_order(frame: bytes) -> None:
    way, long = Way(), Way(with_lane=False)
    frames = [send_frame(1), send_frame(2), frame, send_frame(3)]
    for each in (way, long):
        each.receive(*frames)
    assert 2 in way.taken
    assert 9 not in way.taken
    assert way.everything() == long.everything()


def test_deliveries_have_their_turn_within_one_read() -> None:
    way = Way()
    way.receive(send_frame(1))
    before = way.turns
    way.receive(*(timer_frame(n, LATER) if n % 2 else send_frame(n) for n in range(2, 2 * MESSAGES_PER_RUN + 10)))
    assert len(way.taken) == 2 * MESSAGES_PER_RUN + 8
    assert way.turns == before + 2


def test_a_name_that_comes_twice_counts_as_its_last_value() -> None:
    way = Way()
    way.receive(send_frame(1))
    twice = send_frame(2).replace(b'{"code":310,', b'{"code":310,"code":9,')
    header_bytes = len(twice) - 8 - len(b"body")
    way.receive((len(twice) - 4).to_bytes(4, "big") + header_bytes.to_bytes(4, "big") + twice[8:])
    assert [reply.code for reply in way.replies()] == [Response.SUCCESS, Response.REQUEST_CODE_NOT_SUPPORTED]


def test_a_pull_that_waits_is_woken() -> None:
    way = Way()
    way.receive(send_frame(1))
    woken: list[tuple[str, int]] = []
    way.broker.waiting.by_queue[("orders", 0)] = {}
    way.broker.waiting.mark_ready = lambda topic, queue_id: woken.append((topic, queue_id))  # type: ignore[method-assign]
    way.receive(send_frame(2))
    assert (way.taken, woken) == ([2], [("orders", 0)])


def test_a_broker_that_refuses_messages_refuses_them_in_the_lane() -> None:
    way = Way()
    way.receive(send_frame(1))
    way.broker.gate.close("the broker is stopping")
    way.receive(send_frame(2))
    assert [reply.code for reply in way.replies()] == [Response.SUCCESS, Response.SERVICE_NOT_AVAILABLE]
    assert way.taken == []


def test_a_topic_that_is_closed_while_messages_come_is_closed_for_the_lane() -> None:
    way = Way()
    way.receive(send_frame(1))
    way.broker.topics.put(Topic(name="orders", read_queues=QUEUES, write_queues=QUEUES, permissions=4))
    way.receive(send_frame(2))
    assert [reply.code for reply in way.replies()] == [Response.SUCCESS, Response.NO_PERMISSION]


def test_a_run_that_fails_half_way_is_not_served_again() -> None:
    way = Way()
    way.receive(send_frame(1))
    append_run, runs = way.broker.store.writer.append_run, iter(range(9))

    def fails_after_storing(run: list[PlainMessage], born_host: bytes, now_ms: int) -> list[tuple[int, int]]:
        stored = append_run(run, born_host, now_ms)
        if next(runs) == 1:
            raise OSError("the disk was pulled out")
        return stored

    way.broker.store.writer.append_run = fails_after_storing  # type: ignore[method-assign]
    sent = 3 * MESSAGES_PER_RUN
    way.receive(*(send_frame(opaque) for opaque in range(2, sent + 2)))
    # Who had an answer had it once; who had none may have been stored, and hears the connection end.
    assert [reply.opaque for reply in way.replies()] == list(range(1, MESSAGES_PER_RUN + 2))
    assert way.transport.closed
    assert way.broker.store.queues.ensure("orders", 0).next_offset == 1 + 2 * MESSAGES_PER_RUN


@pytest.mark.parametrize("where", ["commitlog", "consumequeue", "index"])
def test_without_disk_space_a_run_ends_where_the_long_way_would(where: str) -> None:
    ways = Way(), Way(with_lane=False)
    for way in ways:
        way.receive(send_frame(1))

        def fail(operation: str, path: str) -> None:
            if path.startswith(where) and operation in ("reserve", "map"):
                raise StoreError(f"no disk space for {path}")

        way.disk.before_step = fail
        count = INDEX_BATCH + 50
        way.receive(*(send_frame(opaque, properties=f"UNIQ_KEY\x01{opaque}") for opaque in range(2, count)))
        codes = [reply.code for reply in way.replies()]
        assert codes[:10] == [Response.SUCCESS] * 10
        assert set(codes) > {Response.SUCCESS}
        assert len(codes) == count - 1
        way.disk.before_step = lambda operation, path: None
        way.receive(send_frame(count))
    assert ways[0].taken
    assert ways[0].everything() == ways[1].everything()


def test_who_waits_for_the_disk_or_comes_over_ipv6_goes_the_long_way() -> None:
    waiting = StoreConfig(flush="sync", segment=Size(256 * 1024), reserve_step=Size(16 * 1024), queue_file_entries=64)
    for way in (Way(store=waiting), Way(peer=("2001:db8::1", 40_000))):
        way.receive(send_frame(1), send_frame(2))
        assert way.taken == []
        assert way.broker.traffic.messages_in == 2
