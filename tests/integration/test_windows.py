"""Windows of a real broker without Spark: rolled by a process of its own, read, and played to the millisecond."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from latermq.handover.manifest import MANIFEST, window_folder
from latermq.message.properties import encode_properties
from latermq.model.topic import Topic
from latermq.server.broker.process import BrokerProcess
from tests.integration.brokers import running_broker
from tests.support.brokers_in_memory import HOST, messages

pytest.importorskip("deltalake")

# The roll of a window may take some seconds on a busy machine, so there are ten of them before it begins.
PIPELINE = (
    "pipeline.enabled=true", "pipeline.near_horizon=14s", "pipeline.window=2s", "pipeline.ingest_every=1s",
    "pipeline.roll_deadline=10s", "store.flush_every=100ms",
)  # fmt: skip
FAR_MS = 15_000
TOPIC = "orders"


def schedule(process: BrokerProcess, names: list[str], delay_ms: int) -> None:
    for name in names:
        properties = encode_properties({"TIMER_DELAY_MS": str(delay_ms), "UNIQ_KEY": name})
        process.broker.writer.send(TOPIC, 0, name.encode(), properties, 1, HOST)


def begin(process: BrokerProcess) -> None:
    """As a driver does that then is never heard of again."""
    process.broker.topics.put(Topic(name=TOPIC))
    process.broker.tables.save()  # messages are sent past the service here, which would wait for that
    process.broker.ingest.begin()
    process.broker.ingest.save()
    process.broker.far.run()


async def arrival(process: BrokerProcess, count: int) -> Counter[str]:
    """What has arrived once so many have, none of them early."""
    deadline_s = asyncio.get_running_loop().time() + 60
    while True:
        found = messages(process.broker, TOPIC)
        if len(found) >= count or asyncio.get_running_loop().time() > deadline_s:
            assert all(message.store_timestamp_ms >= int(message.properties["LMQ_DUE_MS"]) for message in found)
            return Counter(message.body.decode() for message in found)
        await asyncio.sleep(0.1)


def test_far_timers_arrive_though_spark_is_away(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path, *PIPELINE) as process:
            begin(process)
            names = [f"t{number}" for number in range(50)]
            schedule(process, names[:25], FAR_MS)
            schedule(process, names[25:], FAR_MS + 2_500)
            assert process.broker.far.frontier.frontier_ms < process.broker.clock.now_ms() + FAR_MS
            assert process.broker.pending.cancel(TOPIC, "t7").timers == 1
            await _until_chosen(process)
            # Its window is rolled by now; the cancel still takes it.
            assert process.broker.pending.cancel(TOPIC, "t9").timers == 1
            assert await arrival(process, 48) == Counter(set(names) - {"t7", "t9"})
            assert process.broker.pending.count() == 0

    asyncio.run(main())


def test_a_broker_that_starts_again_goes_on_with_the_attempt_it_plays(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(30)]

    async def begun() -> None:
        async with running_broker(tmp_path, *PIPELINE) as process:
            begin(process)
            schedule(process, names, FAR_MS)
            await _until_chosen(process)

    async def played() -> None:
        async with running_broker(tmp_path, *PIPELINE) as process:
            assert await arrival(process, 30) == Counter(names)

    asyncio.run(begun())
    asyncio.run(played())


def test_a_damaged_attempt_is_left_aside(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path, *PIPELINE) as process:
            begin(process)
            schedule(process, ["a"], FAR_MS)
            await _until(lambda: bool(process.broker.far.unfinished_windows()))
            (window,) = process.broker.far.unfinished_windows()
            folder = tmp_path / "pipeline" / window_folder(process.broker.store.store_id, window.number) / "spark-1-bad"
            folder.mkdir(parents=True)
            (folder / MANIFEST).write_bytes(b"{}\n00000000\n")
            process.broker.far.report_ready(window.number, "spark-1-bad")
            assert await arrival(process, 1) == Counter(["a"])
            assert window.attempt.startswith("local-")

    asyncio.run(main())


def test_a_timeline_that_cannot_be_reached_leaves_near_timers_alone(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")

    async def main() -> None:
        async with running_broker(tmp_path / "data", *PIPELINE, f"pipeline.timeline={blocked}") as process:
            begin(process)
            schedule(process, ["far"], FAR_MS)
            schedule(process, ["near"], 2_000)
            assert await arrival(process, 1) == Counter(["near"])
            await _until(lambda: bool(process._loader.failure))
            assert str(blocked) in process._loader.failure
            assert process.broker.pending.status(TOPIC, "far").timers == 1

    asyncio.run(main())


async def _until_chosen(process: BrokerProcess) -> None:
    await _until(lambda: any(window.attempt for window in process.broker.far.unfinished_windows()))


async def _until(happened: Callable[[], bool]) -> None:
    deadline_s = asyncio.get_running_loop().time() + 60
    while not happened():
        assert asyncio.get_running_loop().time() < deadline_s
        await asyncio.sleep(0.05)


def test_a_moved_timeline_is_used_at_its_new_place(tmp_path: Path) -> None:
    """The steps of operations.md: stop, move the folder, set the new place, start."""
    old, new = tmp_path / "old" / "pipeline", tmp_path / "new" / "pipeline"
    old.parent.mkdir()
    new.parent.mkdir()
    names = [f"t{number}" for number in range(10)]

    async def begun() -> None:
        async with running_broker(tmp_path / "data", *PIPELINE, f"pipeline.timeline={old}") as process:
            begin(process)
            schedule(process, names, FAR_MS)
            await _until_chosen(process)

    async def played() -> None:
        async with running_broker(tmp_path / "data", *PIPELINE, f"pipeline.timeline={new}") as process:
            assert await arrival(process, 10) == Counter(names)

    asyncio.run(begun())
    old.rename(new)
    old.with_name("pipeline.secret").rename(new.with_name("pipeline.secret"))
    asyncio.run(played())
    assert not old.exists()
