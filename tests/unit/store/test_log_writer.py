"""All that is appended passes one place: a listener there sees the log as it is, byte for byte."""

from collections import Counter
from random import Random

import pytest

from latermq.errors import StoreError
from latermq.message.batch import BatchMember, encode_batch
from latermq.message.ids import pack_host
from latermq.message.names import SCHEDULE_TOPIC, TIMER_DEAD_LETTER_TOPIC, TIMER_TOPIC
from latermq.message.record_fields import BLANK
from latermq.model.group import Group
from latermq.model.retry import SendBack
from latermq.protocol.remoting.rows import decode_rows, encode_rows
from latermq.store.commit_log import FOLDER, Piece
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.log_writer import PlainMessage
from latermq.store.message_store import MessageStore
from tests.support.brokers_in_memory import HOST, messages, send
from tests.support.pipeline.far_broker import FarBroker
from tests.support.rows import Row, batch_of
from tests.support.stores import SMALL, append, bodies, open_store

HOST_V6 = pack_host("::1", 40_000)
RETRY, DEAD = "%RETRY%billing", "%DLQ%billing"


class LogCopy:
    """What a replica would have: pieces put where they belong, each behind the one before."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.start = self._end = store.log.end
        self.blanks = 0
        self.data = bytearray()
        store.writer.listen(self._hear)

    def _hear(self, offset: int, piece: Piece) -> None:
        assert offset == self._end, "each piece follows the one before"
        segment_bytes = self._store.writer.segment_bytes
        self.data += piece
        self._end += len(piece)
        if len(piece) == BLANK.size:  # the tail of a segment: the next one follows
            self.blanks += 1
            self.data += bytes(-self._end % segment_bytes)
            self._end += -self._end % segment_bytes

    def check(self, disk: MemoryDisk) -> None:
        """Compare the copy with the files that are left of the log."""
        log, segment_bytes = self._store.log, self._store.writer.segment_bytes
        assert self._end == log.end
        for name in disk.list_names(FOLDER):
            first = int(name)
            if first < log.end:
                last = min(first + segment_bytes, log.end)
                from_ = max(first, self.start)
                written = disk.map_file(f"{FOLDER}/{name}", segment_bytes).read(from_ - first, last - from_)
                assert bytes(self.data[from_ - self.start : last - self.start]) == bytes(written), name


class Life:
    """A broker that gets all that brokers get, in any order."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.far = FarBroker()
        self.broker = self.far.broker
        self.broker.groups.put(Group(name="billing"))
        self.copy = LogCopy(self.broker.store)
        self.number = 0

    def step(self) -> None:
        self.number += 1
        sent = (self.sends, self.run, self.batch, self.level, self.timer, self.far_timer, self.rows)
        self.chance.choice(
            (*sent, self.cancel, self.move, self.retry, self.delete_topic, self.time, self.time, self.far.upkeep)
        )()

    def sends(self) -> None:
        for size in self.chance.sample(range(20_000), 3):
            send(self.broker, b"s" * size, TAGS="a", UNIQ_KEY=f"s{self.number}-{size}")
        self.broker.writer.send("orders", 1, b"from IPv6", "", 1, HOST_V6)

    def run(self) -> None:
        plain = ("orders", 0, b"run", b"", 1, 0, 0, 0, None)
        assert len(self.broker.store.writer.append_run([plain] * 5, HOST, self.far.clock.now_ms())) <= 5

    def batch(self) -> None:
        members = [BatchMember(0, b"b%d" % number, b"UNIQ_KEY\x01b%d" % number) for number in range(20)]
        self.broker.writer.send_batch("orders", 2, encode_batch(members), 1, HOST)

    def level(self) -> None:
        send(self.broker, b"l", topic=self.chance.choice(["orders", "short-lived"]), DELAY="2")

    def timer(self) -> None:
        topic = self.chance.choice(["orders", "short-lived"])
        send(self.broker, b"t" * 3_000, topic=topic, UNIQ_KEY=f"t{self.number}", TIMER_DELAY_MS="3000")

    def far_timer(self) -> None:
        self.far.schedule(f"f{self.number}", self.chance.randrange(20_000, 60_000))

    def rows(self) -> None:
        due_ms = self.far.clock.now_ms() + 4_000
        rows = [Row(f"r{self.number}-{row}", due_ms=due_ms, body=b"row") for row in range(30)]
        self.broker.row_schedule.schedule(decode_rows(encode_rows(batch_of(rows))), HOST)

    def cancel(self) -> None:
        self.broker.pending.cancel("orders", f"t{self.number - 1}")

    def move(self) -> None:
        self.broker.pending.move("orders", f"t{self.number - 1}", self.far.clock.now_ms() + 9_000)

    def retry(self) -> None:
        for message in messages(self.broker, "orders", 0)[-1:]:
            level = self.chance.choice([-1, 1])
            back = SendBack(group="billing", physical_offset=message.physical_offset, delay_level=level)
            self.broker.retries.send_back(back)

    def delete_topic(self) -> None:
        if self.broker.topics.find("short-lived") is not None:
            for save in self.broker.topic_admin.delete("short-lived"):
                save()

    def time(self) -> None:
        self.far.pass_time(self.chance.choice([1_000, 3_000]))


@pytest.mark.parametrize("seed", range(3))
def test_a_listener_sees_the_whole_log_of_any_life_byte_for_byte(seed: int) -> None:
    life = Life(Random(seed))
    for _ in range(150):
        life.step()
        life.copy.check(life.far.disk)
    life.far.pass_time(15_000)
    life.copy.check(life.far.disk)
    topics: Counter[str] = Counter()
    for queue in life.broker.store.queues:
        topics[queue.topic] += queue.next_offset
    waited = {TIMER_TOPIC, SCHEDULE_TOPIC, TIMER_DEAD_LETTER_TOPIC, RETRY, DEAD}
    assert waited <= set(+topics), "the life had all kinds of records"
    assert life.copy.blanks > 1
    life.far.close()


def test_what_the_disk_refuses_is_not_heard() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    copy = LogCopy(store)
    for number in range(100):
        append(store, b"%d" % number)
    disk.capacity_bytes = 0
    refused = 0
    for _ in range(100):
        try:
            append(store, b"x" * 1_000)
        except StoreError:
            refused += 1
    assert refused
    copy.check(disk)
    assert len(copy.data) == store.log.end < SMALL.segment


def run_of(*messages: tuple[bytes, bytes]) -> list[PlainMessage]:
    return [("orders", 0, body, properties, 1, 0, 0, 0, None) for body, properties in messages]


def test_a_run_goes_on_in_the_next_segment() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    copy = LogCopy(store)
    sent = [b"%d" % number * 10_000 for number in range(10)] * 3
    stored = store.writer.append_run(run_of(*((body, b"") for body in sent)), HOST, 1)
    assert len(stored) == len(sent)
    assert copy.blanks > 3
    copy.check(disk)
    assert bodies(store) == sent
    assert bodies(open_store(disk.after_process_crash())) == sent


def test_a_run_that_breaks_off_leaves_what_came_before_whole() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    copy = LogCopy(store)
    with pytest.raises(UnicodeDecodeError):
        store.writer.append_run(run_of((b"a", b""), (b"b", b""), (b"c", b"TAGS\x01\xff"), (b"d", b"")), HOST, 1)
    append(store, b"later")
    copy.check(disk)
    assert bodies(store) == [b"a", b"b", b"later"]
    assert bodies(open_store(disk.after_process_crash())) == [b"a", b"b", b"later"]
