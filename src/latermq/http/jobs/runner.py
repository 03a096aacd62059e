"""Runs jobs: plans them, changes their rows step by step, and continues after a restart of the console."""

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

import msgspec
import structlog

from latermq.clock import Clock
from latermq.config import HttpConfig
from latermq.errors import (
    Busy,
    IllegalOperation,
    InvalidParameter,
    LaterMQError,
    NoPermission,
    QueryNotFound,
    UnsupportedRequest,
)
from latermq.http.jobs.job import FINISHED, REPLACED, SUCCESSES, Impossible, Job, Order, State
from latermq.http.jobs.job_files import AGAIN, IMPOSSIBLE, PLAN, JobFiles, Kept
from latermq.http.jobs.work import Done, Row, Work
from latermq.http.problems import HttpError, problem_of
from latermq.http.timer_request import time_text
from latermq.retry import Backoff

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
STEPS_PER_S = 4  # of a job with a rate
ABORT_S = 5.0  # that a request to abort waits for the current step
MAX_AGAIN = 100_000  # rows that were replaced and are tried together with others of their names
_ID_BYTES = 8
# What does not pass by itself: the job fails instead of waiting.
_FINAL = (UnsupportedRequest, NoPermission, InvalidParameter)

Result = TypeVar("Result")
_log = structlog.get_logger(__name__)


class Requester(NamedTuple):
    """Who begins a job; `user` is empty for those who may do everything."""

    user: str = ""
    source: str = ""
    is_limited: bool = False


ANYBODY = Requester()


class _Aborted(Exception):
    """A client has aborted the job."""


class JobRunner:
    """All jobs of this console. Their files are read and written on one thread."""

    def __init__(
        self,
        config: HttpConfig,
        clock: Clock,
        works: Mapping[str, Work],
        authorize: Callable[[Kept], None] = lambda kept: None,
    ) -> None:
        """`authorize` raises NoPermission if the user of a job may not do it any more."""
        self._config = config
        self._authorize = authorize
        self._clock = clock
        self._works = works
        self._files = JobFiles(config.jobs_folder)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="latermq-jobs")
        self._kept: dict[str, Kept] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._aborts: dict[str, asyncio.Event] = {}
        self._turns = asyncio.Semaphore(config.max_running_jobs)
        self._limited_turns = asyncio.Semaphore(max(1, config.max_running_jobs // 2))
        self._opening = asyncio.Lock()
        self._is_open = False

    def statistics(self) -> dict[str, int]:
        """How many jobs there are and run, and the rows of the largest one that has not finished."""
        jobs = [kept.job for kept in self._kept.values()]
        limited = Counter(kept.job.user for kept in self._kept.values() if _is_limited(kept))
        return {
            "jobs": len(jobs),
            "user_jobs": max(limited.values(), default=0),
            "jobs_running": sum(job.state in ("planning", "running") for job in jobs),
            "job_rows": max((job.matched for job in jobs if job.state not in FINISHED), default=0),
        }

    @property
    def is_durable(self) -> bool:
        """Whether jobs outlive the console."""
        return self._files.is_durable

    async def start(self) -> None:
        """Continue the jobs of the last console. If the folder is in use, jobs are refused until it is not."""
        try:
            await self._open()
        except LaterMQError as error:
            _log.warning("jobs are not available", reason=error.message)

    async def close(self) -> None:
        """Stop all jobs where they are. The next console continues them."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._on_thread(self._files.close)
        self._thread.shutdown()

    async def jobs(self) -> list[Job]:
        """Return all jobs, the newest first."""
        await self._open()
        return [kept.job for kept in reversed(self._kept.values())]

    async def find(self, job: str) -> Job:
        """Return a job."""
        return (await self._require(job)).job

    async def impossible(self, job: str, at_bytes: int, limit: int) -> tuple[list[Impossible], int]:
        """Return what a job could not change, and where the next page begins; -1 at the end."""
        kept = await self._require(job)
        return await self._on_thread(self._files.impossible, kept, at_bytes, limit)

    async def create(
        self, order: Order, idempotency_key: str = "", request: bytes = b"", by: Requester = ANYBODY
    ) -> tuple[Job, bool]:
        """Begin a job. Returns it, and whether an earlier request with the same key began it."""
        await self._open()
        digest = hashlib.blake2b(request, digest_size=_ID_BYTES).hexdigest() if idempotency_key else ""
        name = secrets.token_hex(_ID_BYTES)
        if idempotency_key:
            # Keys have no space, and names of users no colon: no user finds the job of another one.
            wanted = f"{by.user}: {idempotency_key}" if by.user else idempotency_key
            name = hashlib.blake2b(f"http.job {wanted}".encode(), digest_size=_ID_BYTES).hexdigest()
            known = self._kept.get(name)
            if known is not None and known.digest != digest:
                raise HttpError(
                    HTTPStatus.UNPROCESSABLE_ENTITY,
                    "this Idempotency-Key was used for another job",
                    hint="Use a new key for each job",
                )
            if known is not None:
                return known.job, True
        if by.is_limited:
            self._check_room(by.user)
        for_removal = self._removable()
        now_ms = self._clock.now_ms()
        created = time_text(now_ms)
        job = Job(id=name, state="waiting", order=order, created=created, created_ms=now_ms, user=by.user)
        kept = Kept(job, digest, by.source, by.is_limited)
        self._kept[name] = kept  # before the first await, so that no second request creates it too
        try:
            if for_removal is not None:
                await self._forget(for_removal)
            await self._save(kept)
        except BaseException:
            del self._kept[name]
            raise
        self._begin(kept)
        return kept.job, False

    async def abort(self, job: str) -> Job:
        """End a job where it is. What it has changed stays changed."""
        kept = await self._require(job)
        if kept.job.state in FINISHED:
            raise IllegalOperation(f"the job is {kept.job.state}", hint="GET /api/v1/jobs lists the jobs")
        kept.is_abort_wanted = True
        await self._save(kept)
        task = self._tasks.get(job)
        if task is None:  # it has finished meanwhile
            return kept.job
        if kept.job.state == "waiting":
            task.cancel()
            await asyncio.wait([task])
            await self._finish(kept, "aborted")
        else:
            self._aborts[job].set()
            await asyncio.wait([task], timeout=ABORT_S)  # until the current step is done
        return kept.job

    async def forget(self, job: str) -> None:
        """Remove a finished job."""
        kept = await self._require(job)
        if kept.job.state not in FINISHED:
            raise IllegalOperation(f"the job is {kept.job.state}", hint="Abort it first")
        await self._forget(job)

    def _check_room(self, user: str) -> None:
        unfinished = sum(_is_limited(kept) and kept.job.user == user for kept in self._kept.values())
        if unfinished >= self._config.max_user_jobs:
            raise Busy(
                f"{unfinished} jobs of {user} have not finished, the limit is http.max_user_jobs",
                hint="Wait, or abort one of them",
            )

    def _removable(self) -> str | None:
        """Return the job that makes room for a new one, if that is necessary."""
        if len(self._kept) < self._config.max_jobs:
            return None
        for name, kept in self._kept.items():
            if kept.job.state in FINISHED:
                return name
        raise Busy(
            f"{len(self._kept)} jobs have not finished, the limit is http.max_jobs", hint="Wait, or abort one of them"
        )

    async def _require(self, job: str) -> Kept:
        await self._open()
        if (kept := self._kept.get(job)) is None:
            raise QueryNotFound(f"no job {job[:40]!r}", hint="GET /api/v1/jobs lists the jobs")
        return kept

    async def _open(self) -> None:
        async with self._opening:
            if self._is_open:
                return
            if not await self._on_thread(self._files.open):
                raise HttpError(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    "another console uses http.jobs_folder",
                    hint="Use that console, or set another folder",
                )
            for kept in await self._on_thread(self._files.load):
                self._kept[kept.job.id] = kept
            self._is_open = True
            for kept in self._kept.values():
                if kept.job.state not in FINISHED:
                    self._begin(kept)

    async def _forget(self, name: str) -> None:
        self._kept.pop(name, None)
        await self._on_thread(self._files.forget, name)

    def _begin(self, kept: Kept) -> None:
        name, kept.job.state = kept.job.id, "waiting"
        self._aborts[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._run(kept), name=f"job {name}")
        self._tasks[name].add_done_callback(lambda done: (self._tasks.pop(name), self._aborts.pop(name)))

    async def _run(self, kept: Kept) -> None:
        job = kept.job
        try:
            async with self._limited_turns if kept.is_limited else contextlib.nullcontext(), self._turns:
                self._check(kept)
                work = self._works[job.order.action]
                if not kept.is_planned:
                    await self._retried(kept, lambda: self._plan(kept, work))
                await self._change_all(kept, work)
                await self._finish(kept, "done")
        except _Aborted:
            await self._finish(kept, "aborted")
        except LaterMQError as error:
            job.problem = problem_of(error)
            await self._finish(kept, "failed")
        except Exception:  # the last resort: a defect must not leave a job that seems to run
            _log.exception("a job has failed", job=job.id)
            job.problem = problem_of(HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, "the console failed; see its log"))
            await self._finish(kept, "failed")

    def _check(self, kept: Kept) -> None:
        if kept.is_abort_wanted:
            raise _Aborted

    async def _pause(self, kept: Kept, pause_s: float) -> None:
        """Wait, unless the job is aborted."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._aborts[kept.job.id].wait(), max(0.0, pause_s))
        self._check(kept)

    async def _plan(self, kept: Kept, work: Work) -> None:
        job = kept.job
        job.state, job.matched, size_bytes = "planning", 0, 0  # a plan that was not finished was never executed
        self._authorize(kept)
        async for rows in work.plan(job.order):
            self._check(kept)
            job.matched += len(rows)
            if job.matched > self._config.max_job:
                raise InvalidParameter(
                    f"more than {self._config.max_job} match, the limit is http.max_job", hint="Narrow the filter"
                )
            size_bytes = await self._on_thread(self._files.append, job.id, PLAN, size_bytes, rows)
        kept.is_planned, job.state = True, "running"
        await self._save(kept)

    async def _change_all(self, kept: Kept, work: Work) -> None:
        job, rate = kept.job, kept.job.order.per_second
        job.state = "running"
        at_once = min(work.rows_at_once, max(1, (rate or work.rows_at_once * STEPS_PER_S) // STEPS_PER_S))
        next_s = time.monotonic()
        while True:
            rows, after = await self._on_thread(self._files.rows, job.id, PLAN, kept.plan_bytes, at_once)
            if not rows:
                break
            if rate:
                await self._pause(kept, next_s - time.monotonic())
                next_s = max(next_s, time.monotonic()) + len(rows) / rate
            self._check(kept)
            done = await self._retried(kept, lambda rows=rows: self._change(kept, work, rows))  # type: ignore[misc]
            again = [row for row, one in zip(work.merged(rows), done, strict=True) if one.outcome == REPLACED]
            await self._note(kept, len(rows), done, again)
            kept.plan_bytes = after
            await self._retried(kept, lambda: self._save(kept))
        await self._change_again(kept, work)

    async def _change(self, kept: Kept, work: Work, rows: Sequence[Row]) -> list[Done]:
        self._authorize(kept)
        return await work.change(kept.job, rows)

    async def _change_again(self, kept: Kept, work: Work) -> None:
        """Change names of which several timers match: each alone was refused because of the others."""
        if not kept.again_bytes:
            return
        rows, _ = await self._on_thread(self._files.rows, kept.job.id, AGAIN, 0, MAX_AGAIN)
        merged = work.merged(rows)
        for at in range(0, len(merged), work.rows_at_once):
            part = merged[at : at + work.rows_at_once]
            done = await self._retried(kept, lambda part=part: self._change(kept, work, part))  # type: ignore[misc]
            await self._note(kept, len(part), done, [])
        kept.job.done, kept.again_bytes = kept.job.matched, 0  # all at once, so that none counts twice
        await self._retried(kept, lambda: self._save(kept))

    async def _note(self, kept: Kept, rows: int, done: Sequence[Done], again: Sequence[Row]) -> None:
        """Count what became of some rows. Those that are tried again count later."""
        job, files = kept.job, self._files
        successes = SUCCESSES[job.order.action]
        failed = [one for one in done if one.outcome not in successes and not (again and one.outcome == REPLACED)]
        if failed:
            lines = [Impossible(one.id, one.topic, one.outcome, one.detail) for one in failed]
            at_bytes = kept.impossible_bytes
            kept.impossible_bytes = await self._retried(
                kept, lambda: self._on_thread(files.append, job.id, IMPOSSIBLE, at_bytes, lines)
            )
        if again:
            before = kept.again_bytes
            kept.again_bytes = await self._retried(
                kept, lambda: self._on_thread(files.append, job.id, AGAIN, before, again)
            )
        for one in done:
            if not again or one.outcome != REPLACED:
                job.outcomes[one.outcome] = job.outcomes.get(one.outcome, 0) + 1
        job.impossible += len(failed)
        job.done = min(job.matched, job.done + rows - len(again))

    async def _retried(self, kept: Kept, step: Callable[[], Awaitable[Result]]) -> Result:
        """Repeat a step until it succeeds or fails for good: brokers may be away, and disks full, for a while."""
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                result = await step()
            except _FINAL:
                raise
            except LaterMQError as error:
                problem = problem_of(error)
                if not error.retriable and problem.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise
                kept.job.problem = problem
                await self._pause(kept, backoff.next_pause())
            else:
                kept.job.problem = None
                return result

    async def _finish(self, kept: Kept, state: State) -> None:
        kept.job.state, kept.job.finished_ms = state, self._clock.now_ms()
        try:
            await self._save(kept)
            await self._on_thread(self._files.drop_plan, kept.job.id)
        except LaterMQError as error:  # after a restart, the job continues where it was saved last
            _log.warning("a job cannot be saved", job=kept.job.id, reason=error.message)
        _log.info("job finished", job=kept.job.id, state=state, done=kept.job.done, impossible=kept.job.impossible)

    async def _save(self, kept: Kept) -> None:
        # A copy, because the loop may change it while the thread writes.
        copy = msgspec.json.decode(msgspec.json.encode(kept), type=Kept)
        await self._on_thread(self._files.save, copy)

    async def _on_thread(self, call: Callable[..., Result], *arguments: Any) -> Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)
        except OSError as error:
            raise HttpError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"the files of jobs cannot be used: {error.strerror}",
                hint="Check the disk and the permissions of http.jobs_folder",
            ) from None


def _is_limited(kept: Kept) -> bool:
    return kept.is_limited and kept.job.state not in FINISHED
