"""A timeline damaged at every file, and a real broker: its own timers are on time, and a repair loses no other timer.

Files of the table and of its log are removed, cut off and overwritten one by one. What cannot be read is named together
with what to do, and then the steps of docs/operations.md are followed: the file is put back, and the window repaired.
Commits whose files are damaged are passed over like those that a power cut tore: the log still holds the entries.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from latermq.pipeline.timeline.root import open_root
from latermq.server.broker.process import BrokerProcess
from tests.integration.brokers import running_broker
from tests.integration.test_windows import TOPIC, arrival, begin, schedule
from tests.support.brokers_in_memory import messages
from tests.support.faults.timer_histories import append_rows, write_timeline
from tests.support.needs import LONG
from tests.support.pipeline.spark_twin import ingested_entries, state_of

pytestmark = pytest.mark.real

# Time to build, fail, be repaired and build again before the timers are due, on a busy machine.
SETTINGS = (
    "pipeline.enabled=true", "pipeline.near_horizon=24s", "pipeline.window=4s", "pipeline.ingest_every=1s",
    "pipeline.roll_deadline=18s", "store.flush_every=100ms",
)  # fmt: skip
FAR_MS = 29_000
BATCH = 8  # far timers of each commit
COMMITS = 4  # with a checkpoint in the middle
FILES = ("data 0", "data 1", "data 2", "data 3", "commit 0", "commit 1", "commit 2", "commit 3", "commit 4",
         "checkpoint", "pointer")  # fmt: skip
# One of each kind, and each damage at least once.
SHORT = (("data 1", "removed"), ("data 3", "overwritten"), ("commit 4", "cut off"), ("commit 3", "removed"),
         ("checkpoint", "overwritten"))  # fmt: skip
NEAR_LATENESS_MS = 1_500
WAIT_S = 90.0


def overwrite(path: Path) -> None:
    path.write_bytes(b"\x5a" * path.stat().st_size)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: dict[str, Callable[[Path], None]] = {"removed": Path.unlink, "cut off": cut_off, "overwritten": overwrite}
CASES = [(file, damage) for file in FILES for damage in DAMAGES] if LONG else SHORT


class Scene:
    """A broker, and the timeline into which this test ingests its far timers."""

    def __init__(self, folder: Path, process: BrokerProcess) -> None:
        self.process = process
        self.root = open_root(str(folder / "pipeline"))
        self.names: list[str] = []

    async def fill(self) -> None:
        """One commit of far timers after the other, each a file of data."""
        write_timeline(self.root.timeline, [], 0)
        broker = self.process.broker
        for number in range(COMMITS):
            names = [f"far-{number}-{one}" for one in range(BATCH)]
            schedule(self.process, names, FAR_MS)
            self.names += names
            broker.store.flush()
            state = state_of(broker)
            rows = [
                self.row_of(row) for row in ingested_entries(broker, state, state.ingest_offset, state.flushed_entry)
            ]
            assert sum(row["record"] is not None for row in rows) == BATCH, "they are Spark's"
            append_rows(self.root.timeline, rows, state.store_id, state.flushed_entry)
            broker.ingest.commit(state.flushed_entry, state.epoch, state.flushed_entry)
            broker.ingest.save()
            if number == COMMITS // 2 - 1:
                DeltaTable(self.root.timeline).create_checkpoint()
            await asyncio.sleep(0)

    def row_of(self, entry: dict[str, object]) -> dict[str, object]:
        values = {name: value for name, value in entry.items() if name != "queue_offset"}
        return {"store_id": self.process.broker.store.store_id, "entry_offset": entry["queue_offset"], **values}

    def path_of(self, file: str) -> Path:
        table = Path(self.root.timeline)
        kind, _, number = file.partition(" ")
        match kind:
            case "data":
                return sorted(table.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)[int(number)]
            case "commit":
                return table / "_delta_log" / f"{int(number):020d}.json"
            case "checkpoint":
                return next((table / "_delta_log").glob("*.checkpoint.parquet"))
        return table / "_delta_log" / "_last_checkpoint"

    def errors(self) -> dict[int, str]:
        loader = self.process._loader
        windows = self.process.broker.far.unfinished_windows()
        found = {one.number: loader.state_of(one.number).error for one in windows}
        return {number: error for number, error in found.items() if error}

    def is_chosen(self) -> bool:
        loader = self.process._loader
        windows = [one for one in self.process.broker.far.unfinished_windows() if one.attempt]
        return sum(loader.state_of(one.number).rows or 0 for one in windows) == len(self.names)


async def until(happened: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < give_up_s, "it never happened"
        await asyncio.sleep(0.05)


async def damage_and_repair(folder: Path, file: str, damage: str) -> str:
    """Returns the error, or nothing if the broker built the window in spite of the damage."""
    async with running_broker(folder, *SETTINGS) as process:
        begin(process)
        scene = Scene(folder, process)
        await scene.fill()
        path = scene.path_of(file)
        whole = path.read_bytes()
        DAMAGES[damage](path)
        await until(lambda: scene.errors() or scene.is_chosen())
        errors = scene.errors()
        schedule(process, ["near"], 1_000)
        await until(lambda: any(one.body == b"near" for one in messages(process.broker, TOPIC)))
        [near] = [one for one in messages(process.broker, TOPIC) if one.body == b"near"]
        assert 0 <= near.store_timestamp_ms - int(near.properties["LMQ_DUE_MS"]) < NEAR_LATENESS_MS
        path.write_bytes(whole)
        for number in errors:
            await process._loader.repair(number)
        assert await arrival(process, len(scene.names) + 1) == Counter([*scene.names, "near"])
        assert scene.errors() == {}
        return next(iter(errors.values()), "") and f"{path.name}: {next(iter(errors.values()))}"


async def run_all(folder: Path, cases: list[tuple[str, str]]) -> list[str]:
    jobs = [damage_and_repair(folder / f"{file} {damage}", file, damage) for file, damage in cases]
    return list(await asyncio.gather(*jobs))


@pytest.mark.timeout(600)
def test_damage_at_any_file_delays_far_timers_alone_and_a_repair_loses_none(tmp_path: Path) -> None:
    for start in range(0, len(CASES), 6):
        cases = [*CASES[start : start + 6]]
        for (file, damage), found in zip(cases, asyncio.run(run_all(tmp_path, cases)), strict=True):
            print(f"{file} {damage}: {found or 'built in spite of it'}")
            if found:
                name, _, error = found.partition(": ")
                assert name in error, f"{file} {damage}: {found}"
                assert "docs/operations.md" in error, f"{file} {damage}: {found}"
