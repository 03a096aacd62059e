"""Jobs over work in memory: a process may end after any write, and names may have several timers."""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from latermq.clock import SystemClock
from latermq.config import HttpConfig
from latermq.errors import Busy, IllegalOperation, QueryNotFound
from latermq.http.jobs.job import Job, JobPreview, Order
from latermq.http.jobs.job_files import JobFiles
from latermq.http.jobs.runner import JobRunner, Requester
from latermq.http.jobs.work import Done, Row

ORDER = Order("cancel", "t")


class NumberWork:
    """Changes numbers. Two rows with the same name are `replaced` unless they come together."""

    rows_at_once = 7

    def __init__(self, rows: Sequence[Row], failures: int = 0) -> None:
        self.rows = rows
        self.failures = failures
        self.changed: Counter[str] = Counter()

    async def preview(self, order: Order) -> JobPreview:
        return JobPreview(len(self.rows), True, [], [])

    async def plan(self, order: Order) -> AsyncIterator[list[Row]]:
        for row in self.rows:
            yield [row]

    async def change(self, job: Job, rows: Sequence[Row]) -> list[Done]:
        if self.failures:
            self.failures -= 1
            raise Busy("the broker is busy")
        done = []
        for name, numbers in self.merged(rows):
            whole = sum(row[0] == name for row in self.rows)
            is_lost = name.startswith("lost")
            outcome = "not found" if is_lost else "cancelled" if len(numbers) == whole else "replaced"
            self.changed[name] += outcome == "cancelled"
            done.append(Done(outcome, name, "t"))
        return done

    def merged(self, rows: Sequence[Row]) -> list[Row]:
        by_name: dict[str, Row] = {}
        for name, numbers in rows:
            by_name.setdefault(name, [name, []])[1].extend(numbers)
        return list(by_name.values())


def rows_of(count: int) -> list[Row]:
    """Some names are lost, and one in five comes a second time at the end."""
    rows: list[Row] = [[f"lost{n}" if n % 9 == 4 else f"name{n}", [n]] for n in range(count)]
    return rows + [[f"name{n}", [n + count]] for n in range(0, count, 5) if n % 9 != 4]


def with_runner(folder: Path, work: NumberWork, use: Callable[[JobRunner], Awaitable[None]], **settings: int) -> None:
    config = msgspec.structs.replace(HttpConfig(jobs_folder=str(folder)), **settings)

    async def run() -> None:
        runner = JobRunner(config, SystemClock(), {"cancel": work})
        await runner.start()
        try:
            await use(runner)
        finally:
            await runner.close()

    asyncio.run(run())


async def until(runner: JobRunner, name: str, is_reached: Callable[[Job], bool]) -> Job:
    for _ in range(12_000):
        if is_reached(job := await runner.find(name)):
            return job
        await asyncio.sleep(0.005)
    raise AssertionError(f"the job is still {job}")


async def finished(runner: JobRunner, name: str) -> Job:
    return await until(runner, name, lambda job: job.state in ("done", "aborted", "failed"))


def check_result(job: Job, rows: Sequence[Row], failed: int) -> None:
    names = {name for name, _ in rows}
    lost = sum(name.startswith("lost") for name in names)
    assert (job.state, job.matched, job.done) == ("done", len(rows), len(rows))
    assert job.outcomes == {"cancelled": len(names) - lost, "not found": lost}
    assert job.impossible == failed == lost


def test_a_process_may_end_after_any_write_and_the_job_has_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(40)
    states: list[Path] = []
    for name in ("save", "append"):
        method = getattr(JobFiles, name)

        def noted(self: JobFiles, *arguments: object, method: Callable[..., object] = method) -> object:
            result = method(self, *arguments)
            states.append(tmp_path / f"state{len(states)}")
            shutil.copytree(tmp_path / "jobs", states[-1])
            return result

        monkeypatch.setattr(JobFiles, name, noted)

    async def create(runner: JobRunner) -> None:
        job, _ = await runner.create(ORDER)
        ended = await finished(runner, job.id)
        check_result(ended, rows, len((await runner.impossible(job.id, 0, 100))[0]))

    with_runner(tmp_path / "jobs", NumberWork(rows), create)
    monkeypatch.undo()
    assert len(states) > len(rows)

    async def resume(runner: JobRunner) -> None:
        [job] = await runner.jobs()
        check_result(await finished(runner, job.id), rows, len((await runner.impossible(job.id, 0, 100))[0]))

    for state in states[:3] + states[3:-1:7] + states[-12:]:
        with_runner(state, NumberWork(rows), resume)


def test_a_broker_that_is_away_delays_a_job_and_an_abort_ends_it(tmp_path: Path) -> None:
    rows = rows_of(20)

    async def create(runner: JobRunner) -> None:
        job, _ = await runner.create(ORDER)
        check_result(await finished(runner, job.id), rows, 2)

    with_runner(tmp_path / "jobs", NumberWork(rows, failures=2), create)

    async def abort(runner: JobRunner) -> None:
        job, _ = await runner.create(ORDER)
        await until(runner, job.id, lambda one: one.problem is not None)
        assert (await runner.abort(job.id)).state == "aborted"
        assert (await runner.find(job.id)).done == 0
        with pytest.raises(IllegalOperation):
            await runner.abort(job.id)
        with pytest.raises(QueryNotFound):
            await runner.abort("nonsense")

    with_runner(tmp_path / "others", NumberWork(rows, failures=10**6), abort)


def test_jobs_wait_for_their_turn_and_the_oldest_finished_one_makes_room(tmp_path: Path) -> None:
    work = NumberWork(rows_of(20), failures=10**6)

    async def fill(runner: JobRunner) -> None:
        first, second = [(await runner.create(ORDER))[0] for _ in range(2)]
        await until(runner, first.id, lambda one: one.problem is not None)
        assert (await runner.find(second.id)).state == "waiting"
        with pytest.raises(Busy):
            await runner.create(ORDER)
        assert (await runner.abort(second.id)).state == "aborted"
        third, _ = await runner.create(ORDER)
        assert [job.id for job in await runner.jobs()] == [third.id, first.id]
        work.failures = 0
        await finished(runner, third.id)

    with_runner(tmp_path / "jobs", work, fill, max_jobs=2, max_running_jobs=1)


def test_a_damaged_job_is_left_alone(tmp_path: Path) -> None:
    async def create(runner: JobRunner) -> None:
        for _ in range(2):
            job, _ = await runner.create(ORDER)
            await finished(runner, job.id)

    folder = tmp_path / "jobs"
    with_runner(folder, NumberWork(rows_of(5)), create)
    first, second = sorted(one.name for one in folder.iterdir() if one.is_dir())
    (folder / first / "job.json").write_text(json.dumps({"job": 1}))
    (folder / "0123456789abcdef").mkdir()  # created, and never saved

    async def look(runner: JobRunner) -> None:
        assert [job.id for job in await runner.jobs()] == [second]

    with_runner(folder, NumberWork([]), look)
    assert sorted(one.name for one in folder.iterdir() if one.is_dir()) == [first, second]


def test_jobs_of_limited_users_are_bounded_and_leave_room_for_those_of_operators(tmp_path: Path) -> None:
    work = NumberWork(rows_of(3), failures=1_000_000)  # its broker is always busy
    alice, bob, operator = (Requester(name, "10.0.0.7", is_limited=name != "root") for name in ("alice", "bob", "root"))

    async def use(runner: JobRunner) -> None:
        async def begin(by: Requester) -> Job:
            return (await runner.create(ORDER, by=by))[0]

        jobs = [await begin(alice), await begin(alice), await begin(bob)]
        with pytest.raises(Busy, match="max_user_jobs"):
            await begin(alice)
        jobs.append(await begin(operator))
        await until(runner, jobs[3].id, lambda one: one.state == "running")
        assert [job.state for job in jobs] == ["running", "waiting", "waiting", "running"]
        assert runner.statistics()["user_jobs"] == 2
        await runner.abort(jobs[0].id)
        await begin(alice)

    with_runner(tmp_path, work, use, max_running_jobs=2, max_user_jobs=2)


def test_the_same_idempotency_key_of_two_users_begins_two_jobs(tmp_path: Path) -> None:
    work = NumberWork(rows_of(3))

    async def use(runner: JobRunner) -> None:
        begun = [await runner.create(ORDER, "key", b"request", Requester(name)) for name in ("alice", "bob", "alice")]
        assert [is_known for _, is_known in begun] == [False, False, True]
        assert begun[0][0] is begun[2][0]
        assert begun[0][0].id != begun[1][0].id

    with_runner(tmp_path, work, use)
