"""One suite for the store on a disk in memory and on real files."""

import gc
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from latermq.clock import SimulatedClock
from latermq.config import Duration, StoreConfig
from latermq.errors import CorruptStore, IllegalMessage, StoreError
from latermq.message.ids import pack_host
from latermq.message.record import decode_records
from latermq.message.tags import tags_code
from latermq.store.files.memory_disk import MemoryDisk, SimulatedCrash
from latermq.store.log_writer import Draft
from latermq.store.message_store import CheckpointPlan, MessageStore
from latermq.store.retention import Retention
from tests.support.stores import HOST, SMALL, MakeDisk, append, bodies, disk_makers, open_store


@pytest.fixture(params=["memory", "files"])
def make_disk(request: pytest.FixtureRequest, tmp_path: Path) -> MakeDisk:
    return disk_makers(tmp_path)[request.param]


def test_what_is_appended_is_read_back_in_order(make_disk: MakeDisk) -> None:
    store = open_store(make_disk())
    sent = [b"message %d" % number for number in range(500)]
    for body in sent:
        append(store, body)
    assert bodies(store) == sent
    store.close()


def test_a_clean_stop_is_reopened_without_reading_the_log(make_disk: MakeDisk) -> None:
    store = open_store(make_disk())
    sent = [b"message %d" % number for number in range(1_000)]
    for number, body in enumerate(sent):
        append(store, body, queue_id=number % 3)
    end = store.log.end
    store.close()
    reopened = open_store(make_disk())
    assert not reopened.recovery.crashed
    assert reopened.recovery.records == 0
    assert reopened.log.end == end
    assert sorted(bodies(reopened) + bodies(reopened, queue_id=1) + bodies(reopened, queue_id=2)) == sorted(sent)
    reopened.close()


def test_after_a_crash_the_log_is_read_from_the_checkpoint_only(make_disk: MakeDisk) -> None:
    store = open_store(make_disk())
    for number in range(300):
        append(store, b"before %d" % number)
    store.save(store.plan_checkpoint())
    for number in range(40):
        append(store, b"after %d" % number)
    store.release()
    reopened = open_store(make_disk())
    assert reopened.recovery.crashed
    assert reopened.recovery.records == 40
    assert len(bodies(reopened)) == 340
    reopened.close()


def test_without_its_checkpoint_a_crashed_store_is_rebuilt_from_the_whole_log(make_disk: MakeDisk) -> None:
    disk = make_disk()
    store = open_store(disk)
    for number in range(300):
        append(store, b"message %d" % number, key=f"k{number}")
    store.save(store.plan_checkpoint())
    store.release()
    disk.remove("latermq.checkpoint")
    disk.remove("consumequeue")
    reopened = open_store(make_disk())
    assert reopened.recovery.records == 300
    assert len(bodies(reopened)) == 300
    assert len(list(reopened.reader.find_by_key("orders", "k7", 0, 1 << 60))) == 1
    reopened.close()


def test_a_segment_ends_with_a_blank_tail_and_no_record_spans_two(make_disk: MakeDisk) -> None:
    store = open_store(make_disk())
    for number in range(200):
        append(store, bytes([number]) * 1500)
    assert len(store.log.closed_segments()) > 3
    for _, end in store.log.closed_segments():
        assert store.reader.read_message(end) is not None
    assert [body[0] for body in bodies(store)] == list(range(200))
    store.release()
    reopened = open_store(make_disk())
    assert len(bodies(reopened)) == 200
    reopened.close()


def test_a_record_larger_than_a_segment_is_refused_and_nothing_changes(make_disk: MakeDisk) -> None:
    store = open_store(make_disk())
    append(store, b"small")
    end = store.log.end
    with pytest.raises(IllegalMessage, match="does not fit"):
        append(store, b"x" * 65_536)
    assert store.log.end == end
    append(store, b"small again")
    assert bodies(store) == [b"small", b"small again"]
    store.close()


def test_a_batch_is_appended_as_a_whole(make_disk: MakeDisk) -> None:
    store = open_store(make_disk())
    drafts = [Draft("orders", number % 2, b"body %d" % number, b"K\x01v", 1, HOST) for number in range(10)]
    appended = store.writer.append_all(drafts)
    assert [one.queue_offset for one in appended] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert bodies(store) == [b"body 0", b"body 2", b"body 4", b"body 6", b"body 8"]
    messages = [store.reader.read_message(one.physical_offset) for one in appended]
    assert [message.body for message in messages if message] == [draft.body for draft in drafts]
    store.close()


def test_records_with_ipv6_hosts_and_long_topics_are_stored_and_recovered(make_disk: MakeDisk) -> None:
    topic = "%RETRY%" + "g" * 150
    host = pack_host("2001:db8::1", 40_000)
    store = open_store(make_disk())
    physical_offset, _, _ = store.writer.append(topic, 3, b"body", b"", 5, host)
    message = store.reader.read_message(physical_offset)
    assert message is not None
    assert (message.topic, message.born_host, message.queue_id) == (topic, ("2001:db8::1", 40_000), 3)
    store.release()
    reopened = open_store(make_disk())
    assert bodies(reopened, topic, 3) == [b"body"]
    reopened.close()


def test_neighbours_in_the_log_are_fetched_as_one_piece(make_disk: MakeDisk) -> None:
    store = open_store(make_disk())
    for number in range(20):
        append(store, b"message %d" % number)
    fetched = store.reader.fetch(store.queues.ensure("orders", 0), 5, max_count=10, max_bytes=1 << 20)
    assert (len(fetched.pieces), fetched.messages, fetched.next_offset) == (1, 10, 15)
    assert [message.queue_offset for message in decode_records(fetched.pieces[0])] == list(range(5, 15))
    store.close()


def test_a_fetch_returns_one_message_however_small_the_limit(make_disk: MakeDisk) -> None:
    store = open_store(make_disk())
    for _ in range(3):
        append(store, b"x" * 5_000)
    fetched = store.reader.fetch(store.queues.ensure("orders", 0), 0, max_count=10, max_bytes=100)
    assert (fetched.messages, fetched.next_offset) == (1, 1)
    fetched = store.reader.fetch(store.queues.ensure("orders", 0), 0, max_count=10, max_bytes=11_000)
    assert fetched.messages == 2
    store.close()


def test_a_fetch_of_a_backlog_returns_what_a_fetch_with_an_end_returns(make_disk: MakeDisk) -> None:
    """The first one has a way of its own for records that need no examination."""
    store = open_store(make_disk())
    for number in range(200):
        append(store, b"%03d" % number + b"." * (number * 7 % 900), queue_id=number // 5 % 2)
    queue = store.queues.ensure("orders", 0)
    end = queue.next_offset
    for offset in range(end + 1):
        for count in (0, 1, 4, 5, 32):
            for max_bytes in (1, 4_000, 1 << 20):
                plain = store.reader.fetch(queue, offset, max_count=count, max_bytes=max_bytes)
                other = store.reader.fetch(queue, offset, max_count=count, max_bytes=max_bytes, until=end)
                assert b"".join(plain.pieces) == b"".join(other.pieces)
                assert plain[1:] == other[1:]
    store.close()


def test_a_fetch_across_segments_and_queue_files_misses_nothing(make_disk: MakeDisk) -> None:
    store = open_store(make_disk())
    for number in range(300):
        append(store, b"%03d" % number + b"." * 900)
    offset, found = 0, []
    while True:
        fetched = store.reader.fetch(store.queues.ensure("orders", 0), offset, max_count=100, max_bytes=1 << 20)
        if not fetched.messages:
            break
        found += [message.queue_offset for piece in fetched.pieces for message in decode_records(piece)]
        offset = fetched.next_offset
    assert found == list(range(300))
    store.close()


def test_the_tags_code_on_the_entry_filters_without_reading_records(make_disk: MakeDisk) -> None:
    store = open_store(make_disk())
    for number in range(100):
        append(store, b"%d" % number, tag="A" if number % 10 == 0 else "B")
    wanted = tags_code("A")
    fetched = store.reader.fetch(
        store.queues.ensure("orders", 0), 0, max_count=5, max_bytes=1 << 20, code_matches=lambda code: code == wanted
    )
    found = [message.body for piece in fetched.pieces for message in decode_records(piece)]
    assert found == [b"0", b"10", b"20", b"30", b"40"]
    # The sixth is looked at and found not to fit any more, so the next fetch begins no later than there.
    assert 41 <= fetched.next_offset <= 50
    store.close()


def test_keys_are_found_after_a_stop_and_after_a_crash(make_disk: MakeDisk) -> None:
    store = open_store(make_disk())
    for number in range(1_200):  # more than two index files hold
        append(store, b"message %d" % number, key=f"order-{number} pair-{number // 2}")
    store.save(store.plan_checkpoint())
    append(store, b"last", key="order-last")
    store.release()
    store = open_store(make_disk())
    for key, count in (("order-0", 1), ("order-1199", 1), ("pair-3", 2), ("order-last", 1), ("order-none", 0)):
        offsets = list(store.reader.find_by_key("orders", key, 0, 1 << 60))
        messages = [store.reader.read_message(offset) for offset in offsets]
        exact = [message for message in messages if message and key in message.properties["KEYS"].split(" ")]
        assert len(exact) == count, key
    store.close()


def test_an_offset_is_found_by_store_time(make_disk: MakeDisk) -> None:
    clock = SimulatedClock(1_000_000)
    store = open_store(make_disk(), clock=clock)
    for _ in range(10):
        append(store, b"x")
        clock.advance(100)
    queue = store.queues.ensure("orders", 0)
    assert store.reader.offset_by_time(queue, 999_999) == 0
    assert store.reader.offset_by_time(queue, 1_000_300) == 3
    assert store.reader.offset_by_time(queue, 1_000_301) == 4
    assert store.reader.offset_by_time(queue, 2_000_000) == 10
    assert store.reader.offset_by_time(queue, 1_000_350, upper=True) == 3
    assert store.reader.store_timestamp_ms(queue, 2) == 1_000_200
    store.close()


def test_old_segments_go_and_queues_and_index_follow(make_disk: MakeDisk) -> None:
    clock = SimulatedClock()
    config = StoreConfig(
        segment=SMALL.segment,
        reserve_step=SMALL.reserve_step,
        queue_file_entries=16,
        index_slots=97,
        index_entries=50,
        retention=Duration.parse("1h"),
    )
    store = open_store(make_disk(), config, clock)
    retention = Retention(store, config, clock)
    for number in range(100):
        append(store, b"%03d" % number + b"." * 2_000, key=f"k{number}")
    store.save(store.plan_checkpoint())
    assert retention.run() == []
    clock.advance(3_600_001)
    append(store, b"new" + b"." * 60_000)
    store.save(store.plan_checkpoint())
    retention.add_guard(lambda: 65_536)
    removed, *index_files = retention.run()
    assert removed.start == 0
    for gone in (removed, *index_files):
        make_disk().remove(gone.path)
    queue = store.queues.ensure("orders", 0)
    assert queue.min_offset > 20
    assert int(bodies(store)[0][:3]) == queue.min_offset
    assert list(store.reader.find_by_key("orders", "k0", 0, 1 << 60)) == []
    first = queue.min_offset
    store.release()
    reopened = open_store(make_disk(), config, clock)
    assert reopened.queues.ensure("orders", 0).min_offset == first
    assert len(bodies(reopened)) == 101 - first
    reopened.close()


def test_a_removed_topic_stays_removed_after_a_crash_and_can_be_made_again(make_disk: MakeDisk) -> None:
    store = open_store(make_disk())
    for number in range(30):
        append(store, b"old %d" % number)
        append(store, b"other %d" % number, topic="other")
    store.remove_topic("orders")()
    assert store.queues.find("orders", 0) is None
    append(store, b"new")
    store.release()
    reopened = open_store(make_disk())
    assert bodies(reopened) == [b"new"]
    assert len(bodies(reopened, "other")) == 30
    reopened.close()


def test_removals_that_wait_hold_one_checkpoint_for_all_of_them() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    for number in range(20):
        append(store, b"message", topic=f"t{number}")
    append(store, b"stays")
    removals = [store.remove_topic(f"t{number}") for number in range(20)]
    removals += [store.remove_topic(f"nothing{number}") for number in range(20)]
    gc.collect()
    assert sum(isinstance(one, CheckpointPlan) for one in gc.get_objects()) == 1
    disk.calls.made = []
    for remove in removals:
        remove()
    assert [path for call, path in disk.calls.made if call == "rename"].count("latermq.checkpoint.draft") == 1
    assert disk.list_names("consumequeue") == ["orders"]


@pytest.mark.parametrize("fails", [False, True])
def test_whenever_a_process_dies_whose_removals_wait_what_was_removed_is_gone(fails: bool) -> None:
    calls = 0
    is_done = False
    while not is_done:
        disk = MemoryDisk()
        store = open_store(disk)
        for number in range(3):
            append(store, b"old %d" % number, topic="first")
            append(store, b"old %d" % number, topic="second")
            append(store, b"stays")
        first = store.remove_topic("first")
        earlier = store.plan_checkpoint()
        second = store.remove_topic("second")
        store.flush()
        if fails:
            disk.before_step = _failing_once("latermq.checkpoint")
        disk.crash_after(calls)
        try:
            for work in (first, partial(store.save, earlier), second):
                with suppress(StoreError):
                    work()
            is_done = True
        except SimulatedCrash:
            calls += 1
        store = open_store(disk.after_process_crash())
        assert bodies(store) == [b"stays"] * 3
        assert bodies(store, "first") == bodies(store, "second") == []
        append(store, b"new", topic="second")
        assert bodies(store, "second") == [b"new"]
    assert calls > 10


def _failing_once(path: str) -> Callable[[str, str], None]:
    left = [path]

    def fail(operation: str, at: str) -> None:
        if at in left:
            left.remove(at)
            raise StoreError(f"cannot write {at}")

    return fail


def test_the_store_id_is_made_once(make_disk: MakeDisk) -> None:
    first = MessageStore(make_disk(), SMALL, SimulatedClock(), store_host=HOST, new_store_id="one")
    first.close()
    second = MessageStore(make_disk(), SMALL, SimulatedClock(), store_host=HOST, new_store_id="two")
    assert second.store_id == "one"
    second.close()


def test_a_directory_in_use_is_refused(make_disk: MakeDisk) -> None:
    store = open_store(make_disk())
    with pytest.raises(StoreError, match="in use"):
        open_store(make_disk())
    store.close()


def test_a_damaged_checkpoint_is_an_error_that_says_what_to_do(make_disk: MakeDisk) -> None:
    disk = make_disk()
    open_store(disk).close()
    disk.replace("latermq.checkpoint", b'{"log_offset":1}\n00000000\n')
    with pytest.raises(CorruptStore, match="damaged") as caught:
        open_store(make_disk())
    assert "Remove" in caught.value.hint


def test_a_segment_size_that_does_not_fit_the_store_is_refused(make_disk: MakeDisk) -> None:
    store = open_store(make_disk())
    append(store, b"x")
    store.close()
    with pytest.raises(CorruptStore, match="configuration says"):
        open_store(make_disk(), StoreConfig(reserve_step=SMALL.reserve_step))


def test_a_full_disk_refuses_messages_and_loses_none() -> None:
    disk = MemoryDisk(capacity_bytes=300_000)
    store = open_store(disk)
    sent: list[bytes] = []

    def append_for_ever() -> None:
        while True:
            body = b"%05d" % len(sent) + b"." * 500
            append(store, body)
            sent.append(body)

    with pytest.raises(StoreError, match="no disk space"):
        append_for_ever()
    assert len(sent) > 100
    with pytest.raises(StoreError):
        append(store, b"x" * 20_000)
    assert bodies(store) == sent
    reopened = open_store(disk.after_process_crash())
    assert bodies(reopened) == sent
    disk.capacity_bytes *= 2
    append(store, b"there is room again")
    assert bodies(store)[-1] == b"there is room again"
