"""One suite over both timer engines: whatever one of them promises, the other one keeps too.

A rig is an engine with the disk it lives on and a checkpoint; a dictionary of units is the model.
"""

import contextlib
import resource
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from latermq.errors import StoreError
from latermq.message.slots import SLOT_MS, slots_of
from latermq.store.files.memory_disk import MemoryDisk
from latermq.timer.engine.interface import PIECE, Engine, Units
from latermq.timer.engine.rocksdb_engine import RocksEngine
from latermq.timer.engine.wheel_engine import WheelEngine
from tests.support.needs import LONG

BASE_MS = 1_700_000_000_000
FOLDER = "timerrocksdb"
UNITS_BYTES = 52 * 2_000  # of a file of the timer log: small, so that a test goes through many
SEEDS = 400 if LONG else 25
Row = tuple[int, int, int, bool]  # wake, physical offset, size, renews
Model = dict[int, Row]
Step = tuple[str, Units]


class Rig:
    """An engine, its disk, and what the last checkpoint says of it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.disk = MemoryDisk()
        self.saved_mark = ""
        self.saved_from_ms = self.forgotten_ms = BASE_MS
        self.left: list[Engine] = []
        self.engine, self.is_whole = self._open(is_clean=True)

    def _open(self, *, is_clean: bool) -> tuple[Engine, bool]:
        mark, from_ms = self.saved_mark, self.saved_from_ms
        engine: WheelEngine | RocksEngine
        if self.kind == "rocksdb":
            engine = RocksEngine(self.disk.library_folder(FOLDER), mark=mark, from_ms=from_ms)
        else:
            engine = WheelEngine(self.disk, mark=mark, from_ms=from_ms, is_clean=is_clean, file_bytes=UNITS_BYTES)
        return engine, engine.is_whole

    def save(self, from_ms: int | None = None) -> None:
        """Write a checkpoint."""
        mark = self.engine.mark()
        self.engine.sync()
        if self.kind == "rocksdb":
            self.disk.library_synced(FOLDER)
        self.saved_mark = mark
        if from_ms is not None:
            self.saved_from_ms = from_ms
            if from_ms > self.forgotten_ms:
                self.forgotten_ms = from_ms
                self.engine.forget_below(from_ms)

    def stop_and_start(self) -> None:
        self.save()
        self.engine.close()
        self.engine, self.is_whole = self._open(is_clean=True)

    def die(self, disk: MemoryDisk) -> None:
        """Go on with the disk that a death left. The engine that died lives on, on its own disk, but nobody asks it."""
        self.left.append(self.engine)
        self.disk = disk
        self.engine, self.is_whole = self._open(is_clean=False)

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """No room for anything new."""
        capacity_bytes, self.disk.capacity_bytes = self.disk.capacity_bytes, self.disk.used_bytes
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        if self.kind == "rocksdb":
            # RocksDB's files are the machine's, which now lets no file grow. Python ignores the signal that comes.
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            self.disk.capacity_bytes = capacity_bytes

    def close(self) -> None:
        for engine in (*self.left, self.engine):
            engine.close()


@pytest.fixture(params=["wheel", "rocksdb"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    rig = Rig(request.param)
    yield rig
    rig.close()


def units(*rows: tuple[int, int]) -> Units:
    """Units from (entry, milliseconds after the base); each third one is renewed."""
    entries = np.array([entry for entry, _ in rows], np.int64)
    wakes = np.array([BASE_MS + after_ms for _, after_ms in rows], np.int64)
    return Units(entries, wakes, entries * 300 + 7, entries % 1_000 + 100, entries % 3 == 0)


def many(count: int, span_ms: int, first_entry: int = 0) -> Units:
    """`count` units spread over a span."""
    afters = np.random.RandomState(count).randint(1, span_ms + 1, count)
    return units(*zip(range(first_entry, first_entry + count), afters.tolist(), strict=True))


def model_of(*parts: Units) -> Model:
    """What an engine shows for these."""
    model: Model = {}
    for part in parts:
        columns = (part.wakes, part.physical_offsets, part.sizes, part.renews)
        rows: Iterator[Row] = zip(*(column.tolist() for column in columns), strict=True)
        model.update(zip(part.entries.tolist(), rows, strict=True))
    return model


def show(engine: Engine, start_ms: int = BASE_MS, stop_ms: int = BASE_MS + 86_400_000) -> Model:
    """What an engine holds, each entry once, slot by slot, in pieces of the agreed size."""
    shown: Model = {}
    last_slot = -1
    for piece in engine.read(start_ms, stop_ms):
        assert 0 < len(piece.entries) <= PIECE
        assert all(column.dtype == np.int64 for column in piece[:4])
        assert piece.renews.dtype == bool
        slots = slots_of(piece.wakes)
        assert slots.min() >= last_slot
        last_slot = int(slots.max())
        part = model_of(piece)
        assert len(part) == len(piece.entries)
        assert not part.keys() & shown.keys()
        shown.update(part)
    return shown


def within(model: Model, start_ms: int, stop_ms: int) -> Model:
    return {entry: row for entry, row in model.items() if start_ms < row[0] <= stop_ms}


def test_a_slot_holds_what_wakes_after_its_beginning_up_to_its_end(rig: Rig) -> None:
    given = units((0, 1), (1, 999), (2, 1_000), (3, 1_001), (4, 2_000), (5, 2_001))
    rig.engine.put(given, BASE_MS)
    model = model_of(given)
    for start_ms, entries in ((0, [0, 1, 2]), (1_000, [3, 4]), (2_000, [5]), (3_000, [])):
        shown = show(rig.engine, BASE_MS + start_ms, BASE_MS + start_ms + SLOT_MS)
        assert shown == {entry: model[entry] for entry in entries}
    assert show(rig.engine, BASE_MS + 1_000, BASE_MS + 3_000).keys() == {3, 4, 5}
    assert show(rig.engine) == model


def test_nothing_put_is_nothing_held(rig: Rig) -> None:
    rig.engine.put(units(), BASE_MS)
    rig.engine.remove(units(), BASE_MS)
    assert show(rig.engine) == {}
    assert rig.engine.next_slot_ms(0) is None
    assert rig.engine.density(BASE_MS, BASE_MS + 3_000).tolist() == [0, 0, 0]


def test_units_come_in_any_order_and_any_number(rig: Rig) -> None:
    first, second = many(3_000, 600_000), many(2_000, 90_000, first_entry=3_000)
    rig.engine.put(first, BASE_MS)
    rig.engine.put(second, BASE_MS)
    assert show(rig.engine) == model_of(first, second)
    by_second: Model = {}
    for slot_ms in range(BASE_MS, BASE_MS + 600_000, SLOT_MS):
        by_second.update(show(rig.engine, slot_ms, slot_ms + SLOT_MS))
    assert by_second == model_of(first, second)


def test_half_a_million_in_one_second_come_in_pieces(rig: Rig) -> None:
    count = 500_000
    entries = np.arange(count)
    given = Units(entries, BASE_MS + 1 + entries % 1_000, entries * 400, np.full(count, 400), np.zeros(count, bool))
    for start in range(0, count, 50_000):
        rig.engine.put(given.where(np.arange(start, start + 50_000)), BASE_MS)
    pieces = list(rig.engine.read(BASE_MS, BASE_MS + SLOT_MS))
    assert max(len(piece.entries) for piece in pieces) <= PIECE
    found = np.concatenate([piece.entries for piece in pieces])
    assert np.array_equal(np.sort(found), entries)
    assert rig.engine.density(BASE_MS, BASE_MS + SLOT_MS).tolist() == [count]
    assert rig.engine.count(BASE_MS) == count


def test_what_is_removed_is_not_read(rig: Rig) -> None:
    given = many(1_000, 60_000)
    rig.engine.put(given, BASE_MS)
    gone = given.where(given.entries % 2 == 0)
    rig.engine.remove(gone, BASE_MS)
    assert show(rig.engine) == model_of(given.where(given.entries % 2 == 1))
    rig.stop_and_start()
    assert rig.is_whole
    assert show(rig.engine) == model_of(given.where(given.entries % 2 == 1))


def test_what_was_put_before_a_start_is_removed_after_it(rig: Rig) -> None:
    given = many(1_000, 60_000)
    rig.engine.put(given, BASE_MS)
    rig.stop_and_start()
    rig.engine.remove(given.where(given.entries < 900), BASE_MS)
    assert show(rig.engine) == model_of(given.where(given.entries >= 900))


def test_removing_twice_or_what_was_never_there_changes_nothing(rig: Rig) -> None:
    given = units((1, 500), (2, 600), (3, 1_500))
    rig.engine.put(given, BASE_MS)
    for _ in range(2):
        rig.engine.remove(units((1, 500)), BASE_MS)
        rig.engine.remove(units((77, 500), (78, 7_500)), BASE_MS)
    assert show(rig.engine) == model_of(units((2, 600), (3, 1_500)))


def test_putting_twice_changes_nothing(rig: Rig) -> None:
    given = many(500, 5_000)
    rig.engine.put(given, BASE_MS)
    rig.engine.put(given, BASE_MS + 10)
    assert show(rig.engine) == model_of(given)
    rig.engine.remove(units((7, int(given.wakes[7]) - BASE_MS)), BASE_MS)
    assert show(rig.engine).keys() == set(range(500)) - {7}


def test_the_next_slot_is_the_first_that_holds_anything(rig: Rig) -> None:
    rig.engine.put(units((1, 500), (2, 61_000), (3, 7_200_001)), BASE_MS)
    expected = [
        (0, BASE_MS),
        (BASE_MS, BASE_MS),
        (BASE_MS + 1, BASE_MS + 60_000),
        (BASE_MS + 60_000, BASE_MS + 60_000),
        (BASE_MS + 60_001, BASE_MS + 7_200_000),
    ]
    for from_ms, slot_ms in expected:
        assert rig.engine.next_slot_ms(from_ms) == slot_ms
    assert rig.engine.next_slot_ms(BASE_MS + 7_200_001) is None


def test_density_counts_what_is_due_in_each_second_and_not_what_rolls(rig: Rig) -> None:
    rig.engine.put(units((0, 1), (1, 1_000), (2, 1_001), (3, 3_500), (4, 3_600)), BASE_MS)  # 0 and 3 roll
    assert rig.engine.density(BASE_MS, BASE_MS + 5_000).tolist() == [1, 1, 0, 1, 0]
    assert [rig.engine.count(BASE_MS + slot_ms) for slot_ms in (0, 1_000, 2_000, 3_000)] == [2, 1, 0, 2]
    rig.engine.put(units((5, 900), (6, 901)), BASE_MS)
    rig.engine.remove(units((0, 1), (1, 1_000)), BASE_MS)
    assert rig.engine.density(BASE_MS, BASE_MS + 1_000).tolist() == [1]
    assert rig.engine.count(BASE_MS) == 2


def test_what_is_done_with_is_forgotten_and_the_rest_stays(rig: Rig) -> None:
    given = many(20_000, 600_000)
    rig.engine.put(given, BASE_MS)
    for after_ms in (30_000, 90_000, 91_000, 400_000):
        rig.save(from_ms=BASE_MS + after_ms + 1)
        assert show(rig.engine, BASE_MS + after_ms) == within(model_of(given), BASE_MS + after_ms, 1 << 62)
        assert rig.engine.next_slot_ms(0) == BASE_MS + after_ms
    rig.stop_and_start()
    assert rig.is_whole
    assert show(rig.engine, BASE_MS + 400_000) == within(model_of(given), BASE_MS + 400_000, 1 << 62)
    assert rig.engine.next_slot_ms(0) == BASE_MS + 400_000


def test_what_is_put_after_forgetting_counts_though_it_wakes_before(rig: Rig) -> None:
    given, early = many(2_000, 60_000), units((9_000, 5_500), (9_001, 29_500))
    rig.engine.put(given, BASE_MS)
    rig.save(from_ms=BASE_MS + 30_001)
    rig.engine.put(early, BASE_MS)
    expected = model_of(early) | within(model_of(given), BASE_MS + 30_000, 1 << 62)
    assert show(rig.engine) == expected
    assert rig.engine.next_slot_ms(0) == BASE_MS + 5_000
    rig.save(from_ms=BASE_MS + 5_001)  # a checkpoint may say less than the one before
    rig.die(rig.disk.after_process_crash())
    assert rig.is_whole
    assert show(rig.engine) == expected
    rig.save(from_ms=BASE_MS + 31_001)
    assert rig.engine.next_slot_ms(0) == BASE_MS + 31_000


def test_a_cleared_engine_is_empty_and_takes_everything_again(rig: Rig) -> None:
    given = many(1_000, 60_000)
    rig.engine.put(given, BASE_MS)
    rig.save()
    rig.engine.clear()
    assert show(rig.engine) == {}
    assert rig.engine.next_slot_ms(0) is None
    rig.engine.put(given, BASE_MS)
    assert show(rig.engine) == model_of(given)


def test_a_checkpoint_from_before_clearing_promises_what_is_not_there(rig: Rig) -> None:
    rig.engine.put(many(1_000, 60_000), BASE_MS)
    rig.save()
    rig.engine.clear()
    rig.engine.put(many(2_000, 60_000), BASE_MS)
    rig.die(rig.disk.after_process_crash())
    assert not rig.is_whole
    assert show(rig.engine) == {}


def test_without_a_checkpoint_an_engine_starts_empty(rig: Rig) -> None:
    rig.engine.put(many(1_000, 60_000), BASE_MS)
    rig.engine.sync()
    rig.die(rig.disk.after_process_crash())
    assert rig.is_whole
    assert show(rig.engine) == {}


def test_a_mark_of_another_engine_is_not_kept(rig: Rig) -> None:
    rig.engine.put(many(100, 60_000), BASE_MS)
    rig.save()
    rig.saved_mark = "something else"
    rig.die(rig.disk.after_process_crash())
    assert not rig.is_whole
    assert show(rig.engine) == {}


@pytest.mark.parametrize("death", ["process", "machine"])
def test_what_a_checkpoint_names_outlives_a_death(rig: Rig, death: str) -> None:
    chance = Random(1)
    kept, lost = many(3_000, 60_000), many(3_000, 60_000, first_entry=3_000)
    gone = kept.where(kept.entries < 100)
    rig.engine.put(kept, BASE_MS)
    rig.save()
    rig.engine.put(lost, BASE_MS)
    rig.engine.remove(gone, BASE_MS)
    for _ in range(3):
        rig.die(rig.disk.after_process_crash() if death == "process" else rig.disk.after_machine_crash(chance))
        assert rig.is_whole
        shown = show(rig.engine)
        assert shown.keys() >= set(range(100, 3_000))
        assert shown.items() <= model_of(kept, lost).items()
    rig.engine.put(lost, BASE_MS)
    rig.engine.remove(gone, BASE_MS)
    assert show(rig.engine) == model_of(kept.where(kept.entries >= 100), lost)


def test_a_call_refused_for_want_of_space_is_repeated(rig: Rig) -> None:
    given, more, gone = many(500, 60_000), many(20_000, 60_000, first_entry=500), many(500, 60_000)
    rig.engine.put(given, BASE_MS)
    with rig.full_disk():
        for _ in range(3):
            with pytest.raises(StoreError) as refused:
                rig.engine.put(more, BASE_MS)
            assert refused.value.hint
    assert show(rig.engine).items() >= model_of(given).items()
    rig.engine.put(more, BASE_MS)
    assert show(rig.engine) == model_of(given, more)
    rig.engine.remove(gone, BASE_MS)
    rig.stop_and_start()
    assert rig.is_whole
    assert show(rig.engine) == model_of(more)


class Run:
    """A random course of an engine beside its model."""

    def __init__(self, rig: Rig, chance: Random) -> None:
        self.rig = rig
        self.chance = chance
        self.model: Model = {}
        self.ever: Model = {}
        self.since_save: list[Step] = []
        self.next_entry = 0
        self.from_ms = BASE_MS  # slots before this one are forgotten

    def apply(self, kind: str, rows: Units) -> None:
        call = self.rig.engine.put if kind == "put" else self.rig.engine.remove
        call(rows, self.from_ms)
        self.since_save.append((kind, rows))
        if kind == "put":
            self.model.update(model_of(rows))
            self.ever.update(model_of(rows))
        else:
            for entry in rows.entries.tolist():
                self.model.pop(entry, None)

    def put(self) -> None:
        count = self.chance.choice([1, 3, 50, 700])
        span_ms = self.chance.choice([900, 5_000, 200_000])
        if self.chance.random() < 0.1:
            # Timers come that wake before the last T: the next T is earlier.
            self.from_ms = max(BASE_MS, self.from_ms - self.chance.randint(1, 9) * SLOT_MS)
        after_ms = self.from_ms - BASE_MS
        afters = [after_ms + self.chance.randint(1, span_ms) for _ in range(count)]
        self.apply("put", units(*zip(range(self.next_entry, self.next_entry + count), afters, strict=True)))
        self.next_entry += count

    def put_again(self) -> None:
        if self.since_save:
            kind, rows = self.chance.choice(self.since_save)
            alive = np.isin(rows.entries, list(self.model))
            if kind == "put":
                self.apply("put", rows.where(alive))

    def remove(self) -> None:
        known = [entry for entry, row in self.ever.items() if row[0] > self.from_ms]
        picked = self.chance.sample(known, min(len(known), self.chance.choice([1, 20])))
        self.apply("remove", units(*((entry, self.ever[entry][0] - BASE_MS) for entry in picked)))

    def save(self) -> None:
        if self.chance.random() < 0.3:
            self.from_ms += self.chance.randint(0, 40) * SLOT_MS
            self.model = within(self.model, self.from_ms, 1 << 62)
        self.rig.save(from_ms=self.from_ms + 1)
        self.since_save.clear()

    def die(self) -> None:
        if not self.rig.saved_mark:
            return
        as_machine = self.chance.random() < 0.5
        disk = self.rig.disk
        self.rig.die(disk.after_machine_crash(self.chance) if as_machine else disk.after_process_crash())
        assert self.rig.is_whole
        for kind, rows in self.since_save.copy():
            (self.rig.engine.put if kind == "put" else self.rig.engine.remove)(rows, self.from_ms)

    def stop_and_start(self) -> None:
        self.rig.save(from_ms=self.from_ms + 1)
        self.rig.stop_and_start()
        self.since_save.clear()
        assert self.rig.is_whole

    def look(self) -> None:
        engine = self.rig.engine
        start_ms = self.from_ms + self.chance.randint(0, 60) * SLOT_MS
        stop_ms = start_ms + self.chance.choice([1, 1, 1, 7, 60, 300]) * SLOT_MS
        expected = within(self.model, start_ms, stop_ms)
        assert show(engine, start_ms, stop_ms) == expected
        counts = engine.density(start_ms, stop_ms)
        slots = np.array([(row[0] - 1 - start_ms) // SLOT_MS for row in expected.values() if not row[-1]], np.int64)
        assert (counts >= 0).all()
        if self.rig.kind == "rocksdb":  # the wheel counts units, of which an entry may have several
            assert counts.tolist() == np.bincount(slots, minlength=len(counts)).tolist()
        self.look_for_next(start_ms)

    def look_for_next(self, start_ms: int) -> None:
        """An engine may name a slot whose entries were all removed, but it passes none over."""
        later = [row[0] for row in self.model.values() if row[0] > start_ms]
        slot_ms = self.rig.engine.next_slot_ms(start_ms)
        if later:
            assert slot_ms is not None
            assert start_ms <= slot_ms <= (min(later) - 1) // SLOT_MS * SLOT_MS


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_course_shows_what_the_model_holds(rig: Rig, seed: int) -> None:
    chance = Random(seed)
    run = Run(rig, chance)
    steps = (
        [run.put] * 8 + [run.put_again, run.remove, run.remove, run.save, run.die, run.stop_and_start] + [run.look] * 8
    )
    for _ in range(60):
        chance.choice(steps)()
    assert show(rig.engine, run.from_ms) == run.model
    assert all(count >= 0 for count in rig.engine.statistics().values())
