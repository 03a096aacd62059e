"""Checkpoints: what takes part in them registers, and the file stays what it was."""

from collections import Counter
from random import Random

import msgspec
import pytest

from latermq.clock import SimulatedClock
from latermq.handover.checked_file import decode_checked, encode_checked
from latermq.handover.cut import Cut
from latermq.store.checkpoint import PATH, Checkpoint, TimerMarks, UnfinishedRebuild, load_checkpoint, save_checkpoint
from latermq.store.commit_log import CommitLog
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.message_store import MessageStore
from latermq.store.participant import CheckpointParticipant, Loss, Part
from latermq.store.replayed_batch import ReplayedBatch
from tests.support.stores import HOST, SMALL, append, bodies

TALLY = "tally"


class Tally(CheckpointParticipant):
    """Counts the messages of each topic. Its state is in the checkpoint alone, or in a file if it has one."""

    fields = (TALLY,)

    def __init__(self, disk: MemoryDisk, file: str = "") -> None:
        self._disk, self._file = disk, file
        self.counts: Counter[str] = Counter()
        self.safe: dict[str, int] = {}
        self.replayed = 0

    def restore(self, checkpoint: Checkpoint | None, log: CommitLog) -> Loss | None:
        if checkpoint is None:
            return None
        own = checkpoint.more.get(TALLY)
        if own is None or (self._file and self._disk.read(self._file) is None):
            return LostTally(self)
        self.counts.update(msgspec.json.decode(own, type=dict[str, int]))
        return None

    def replay(self, batch: ReplayedBatch) -> None:
        self.counts.update(batch.topics)
        self.replayed += len(batch.topics)

    def plan(self) -> Part:
        counts = dict(self.counts)

        def sync() -> None:
            if self._file:
                self._disk.replace(self._file, msgspec.json.encode(counts))

        return Part({TALLY: counts}, sync)

    def note_saved(self, checkpoint: Checkpoint) -> None:
        own = checkpoint.more[TALLY]
        self.safe = msgspec.json.decode(own) if isinstance(own, msgspec.Raw) else own


class LostTally(Loss):
    names = (TALLY,)
    unfinished = {}  # noqa: RUF012

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def clear(self) -> None:
        self._tally.counts.clear()

    def rebuild(self, batch: ReplayedBatch) -> None:
        self._tally.counts.update(batch.topics)


def open_with(disk: MemoryDisk, *participants: CheckpointParticipant) -> MessageStore:
    return MessageStore(
        disk, SMALL, SimulatedClock(), store_host=HOST, new_store_id="a" * 32, participants=participants
    )


def put(store: MessageStore, tally: Tally, topic: str) -> None:
    append(store, b"%d" % tally.counts[topic], topic=topic)
    tally.counts[topic] += 1


@pytest.mark.parametrize("seed", range(3))
def test_a_participant_that_registers_survives_deaths_of_the_process_and_of_the_machine(seed: int) -> None:
    chance, disk = Random(seed), MemoryDisk()
    tally = Tally(disk)
    store = open_with(disk, tally)
    for _ in range(20):
        for _ in range(chance.randrange(40)):
            put(store, tally, chance.choice(["orders", "bills"]))
        if chance.random() < 0.5:
            store.save(store.plan_checkpoint())
            assert tally.safe == tally.counts
        if chance.random() < 0.3:
            store.close()
        machine = chance.random() < 0.5
        if machine:
            store.flush()
        before = +tally.counts
        disk = disk.after_machine_crash(chance) if machine else disk.after_process_crash()
        tally = Tally(disk)
        store = open_with(disk, tally)
        assert tally.counts == before
        assert tally.replayed == store.recovery.records
        assert all(len(bodies(store, topic)) == count for topic, count in before.items())


def test_what_was_saved_is_told_once_it_is_on_disk() -> None:
    disk = MemoryDisk()
    tally = Tally(disk)
    store = open_with(disk, tally)
    put(store, tally, "orders")
    plan = store.plan_checkpoint()
    put(store, tally, "orders")
    assert tally.safe == {}
    store.save(plan)
    assert tally.safe == {"orders": 1}, "as it was when the checkpoint was planned"
    again = Tally(disk.after_process_crash())
    open_with(disk.after_process_crash(), again)
    assert (again.safe, again.counts) == ({"orders": 1}, {"orders": 2})


@pytest.mark.parametrize("is_new", [True, False])
def test_a_participant_that_is_new_or_lost_its_file_is_built_again_from_the_log(is_new: bool) -> None:
    disk = MemoryDisk()
    store = open_with(disk, *([] if is_new else [Tally(disk, "tally.file")]))
    for _ in range(30):
        append(store, b"x")
    store.save(store.plan_checkpoint())
    append(store, b"x")
    disk = disk.after_process_crash()
    if not is_new:
        disk.remove("tally.file")
    tally = Tally(disk, "tally.file")
    store = open_with(disk, tally)
    assert store.recovery.rebuilt == (TALLY,)
    assert (tally.counts, tally.replayed) == ({"orders": 31}, 1)
    saved = load_checkpoint(disk)
    assert saved is not None
    assert TALLY not in saved.more, "until the next checkpoint, a start builds it again"
    store.close()
    assert open_with(disk, Tally(disk, "tally.file")).recovery.rebuilt == ()


def test_two_participants_cannot_have_the_same_field() -> None:
    disk = MemoryDisk()
    with pytest.raises(AssertionError, match=TALLY):
        open_with(disk, Tally(disk), Tally(disk))


def test_a_participant_that_is_gone_leaves_a_store_that_opens() -> None:
    disk = MemoryDisk()
    store = open_with(disk, Tally(disk))
    append(store, b"x")
    store.close()
    store = open_with(disk)
    assert bodies(store) == [b"x"]
    store.close()
    saved = load_checkpoint(disk)
    assert saved is not None
    assert saved.more == {}


FULL = Checkpoint(
    log_offset=9_000,
    index_file="20261116",
    index_next_entry=7,
    store_timestamp_ms=1_700_000_000_000,
    index_files=["20261115", "20261116"],
    index_file_bytes=420,
    delivered={2: [(0, 5)], 0: [(3, 4), (6, 9)]},
    queue_ends={"orders": {0: 3, 1: 0}},
    queue_starts={"orders": {0: 1}},
    timers=TimerMarks(
        engine="wheel", mark="1:2", put_upto=3, wake_ms=4, done_upto=5, done_wake_ms=6, near_done_wake_ms=7,
        far_done=[(8, 9)], pending={"orders": 10}, frontiers=[(11, 12)], far_until_ms=13,
        cuts=[Cut(1, 2, 3, 4, 5, 6, 7)],
    ),
    unfinished=UnfinishedRebuild(queues={"orders": [0]}, index=True),
)  # fmt: skip
# As the first version wrote it.
FULL_LINE = (
    b'{"log_offset":9000,"index_file":"20261116","index_next_entry":7,"store_timestamp_ms":1700000000000'
    b',"index_files":["20261115","20261116"],"index_file_bytes":420'
    b',"delivered":{"2":[[0,5]],"0":[[3,4],[6,9]]},"queue_ends":{"orders":{"0":3,"1":0}}'
    b',"queue_starts":{"orders":{"0":1}},"timers":{"engine":"wheel","mark":"1:2","put_upto":3,"wake_ms":4'
    b',"done_upto":5,"done_wake_ms":6,"near_done_wake_ms":7,"far_done":[[8,9]]'
    b',"pending":{"orders":10},"cuts":[[1,2,3,4,5,6,7]],"frontiers":[[11,12]]'
    b',"far_until_ms":13},"unfinished":{"queues":{"orders":[0]},"index":true},"version":1}'
)


def test_the_file_of_a_checkpoint_is_what_it_was() -> None:
    disk = MemoryDisk()
    save_checkpoint(disk, FULL)
    data = disk.read(PATH)
    assert data is not None
    assert data.splitlines()[0] == FULL_LINE
    assert load_checkpoint(disk) == FULL
    names = list(decode_checked(data, dict[str, msgspec.Raw], PATH, ""))
    save_checkpoint(disk, msgspec.structs.replace(FULL, more={TALLY: {"orders": 1}}))
    data = disk.read(PATH)
    assert data is not None
    assert list(decode_checked(data, dict[str, msgspec.Raw], PATH, "")) == [*names, TALLY]
    assert encode_checked(decode_checked(data, dict[str, msgspec.Raw], PATH, "")) == data
