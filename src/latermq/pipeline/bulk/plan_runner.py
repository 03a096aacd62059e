"""Execution of a bulk job's plan: its files in order, with many requests in flight, and a result for each row."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from latermq.client.session.connection import Connections
from latermq.errors import CorruptStore, LaterMQError, StoreError
from latermq.pipeline.bulk.bulk_job import files_in, job_folder
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.durable import sync_file, sync_folder
from latermq.pipeline.timeline.root import Root, file_errors, write_file
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.timers import decode_outcomes
from latermq.retry import Backoff

PLAN, RESULTS = "plan", "results"
# The most rows that a file of a plan has, and so the most that are repeated after a killed run.
CHUNK_ROWS = 5_000
IN_FLIGHT = 64
TIMEOUT_S = 30.0
PATIENCE_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
REFUSED = "refused"

_RESULT = pa.schema(
    [
        ("store_id", pa.string()),
        ("timer_id", pa.int64()),
        ("topic", pa.string()),
        ("unique_key", pa.string()),
        ("new_due_ms", pa.int64()),
        ("verdict", pa.string()),
        ("detail", pa.string()),
    ]
)


@dataclass(frozen=True)
class Step:
    """One name of a plan."""

    store_id: str
    timer_id: int
    topic: str
    unique_key: str
    new_due_ms: int | None
    timer_ids: Sequence[int] = ()
    scheduled_before: int | None = None

    def request(self) -> tuple[int, dict[str, str]]:
        """The request for this step. It acts only on the planned timers, not on later ones of the same name."""
        ids = ",".join(map(str, self.timer_ids or (self.timer_id,)))
        fields = {"topic": self.topic, "uniqueKey": self.unique_key, "timerIds": ids}
        if self.scheduled_before is not None:
            fields["scheduledBefore"] = str(self.scheduled_before)
        if self.new_due_ms is None:
            return Request.CANCEL_TIMER, fields
        return Request.MOVE_TIMER, {**fields, "dueMs": str(self.new_due_ms)}


def run_plan(
    root: Root, job: str, rows: int, namesrv: str, on_started: Callable[[int], None], on_done: Callable[[int], None]
) -> tuple[int, Counter[str]]:
    """Execute the files that have no result yet. Returns the rows that had one, and the number of rows per verdict.

    `rows` is the size of the plan. A plan that has lost rows is refused rather than executed as if it were complete.
    """
    folder = job_folder(root, job)
    verdicts: Counter[str] = Counter()
    files = files_in(root, f"{folder}/{PLAN}", ".parquet")
    _check_rows(root, f"{folder}/{PLAN}", files, rows)
    finished = set(files_in(root, f"{folder}/{RESULTS}", ".parquet"))
    for name in sorted(finished):
        verdicts.update(_read(root, f"{folder}/{RESULTS}/{name}").column("verdict").to_pylist())
    done_before = verdicts.total()
    on_started(done_before)
    left = [name for name in files if name not in finished]
    if left:
        # Use another thread, because the caller, for example a notebook, may already run an event loop.
        with ThreadPoolExecutor(1) as thread:
            addresses = addresses_by_store(namesrv)
            verdicts += thread.submit(asyncio.run, _run_files(root, folder, left, addresses, on_done)).result()
    return done_before, verdicts


def sync_plan(root: Root, job: str) -> None:
    """Make a plan durable before anything refers to it: Spark syncs nothing."""
    if not root.is_local:
        return
    folder = f"{job_folder(root, job)}/{PLAN}"
    with file_errors(folder):
        for name in files_in(root, folder, ".parquet"):
            sync_file(f"{folder}/{name}")
        sync_folder(folder)


def _check_rows(root: Root, folder: str, files: Sequence[str], rows: int) -> None:
    found_rows = 0
    for name in files:
        path = f"{folder}/{name}"
        try:
            with file_errors(path), root.files.open_input_file(path) as file:
                found_rows += pq.read_metadata(file).num_rows
        except pa.ArrowException as error:
            raise _damaged_plan(path, str(error)) from error
    if found_rows != rows:
        raise _damaged_plan(folder, f"it has {found_rows} rows, not {rows}")


def _damaged_plan(path: str, why: str) -> CorruptStore:
    return CorruptStore(
        f"the plan {path} is damaged: {why}",
        hint="Run the same request under another job name; timers that are already cancelled or moved stay so",
    )


def addresses_by_store(namesrv: str) -> dict[str, str]:
    """Store id → address of its broker."""
    found = {}
    for address in masters(namesrv).values():
        with BrokerLink(address) as link:
            found[link.state().store_id] = address
    return found


async def _run_files(
    root: Root, folder: str, names: Sequence[str], addresses: dict[str, str], on_done: Callable[[int], None]
) -> Counter[str]:
    verdicts: Counter[str] = Counter()
    connections = Connections(on_request=lambda connection, command: None)
    try:
        for name in names:
            steps = steps_of(_read(root, f"{folder}/{PLAN}/{name}"))
            runner = _PlanRunner(connections, addresses, on_done)
            results = await runner.run(steps)
            table = pa.Table.from_pylist(
                [
                    {**_fields(step), "verdict": verdict, "detail": detail}
                    for step, (verdict, detail) in zip(steps, results, strict=True)
                ],
                _RESULT,
            )
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink)
            write_file(root, f"{folder}/{RESULTS}/{name}", sink.getvalue().to_pybytes())
            verdicts.update(verdict for verdict, _ in results)
    finally:
        await connections.close()
    return verdicts


class _PlanRunner:
    """Executes the steps of one file, up to IN_FLIGHT at once, and retries each until it gets an answer."""

    def __init__(self, connections: Connections, addresses: dict[str, str], on_done: Callable[[int], None]) -> None:
        self._connections = connections
        self._addresses = addresses
        self._on_done = on_done

    async def run(self, steps: Sequence[Step]) -> list[tuple[str, str]]:
        missing = {step.store_id for step in steps} - self._addresses.keys()
        if missing:
            raise StoreError(
                f"the broker of store {', '.join(sorted(missing))} is unreachable",
                hint="Start it and run the job again; finished rows are not repeated",
            )
        results = [("", "")] * len(steps)
        numbers = iter(range(len(steps)))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(IN_FLIGHT, len(steps))):
                    group.create_task(self._work(steps, numbers, results))
        except* LaterMQError as failed:
            failure = failed.exceptions[0]
        else:
            return results
        raise failure

    async def _work(self, steps: Sequence[Step], numbers: Iterator[int], results: list[tuple[str, str]]) -> None:
        for number in numbers:
            results[number] = await self._request(steps[number])
            self._on_done(1)

    async def _request(self, step: Step) -> tuple[str, str]:
        """Send a step; returns verdict and detail.

        A repeated cancel has the same answer, a repeated move the same effect.
        """
        code, fields = step.request()
        give_up_s = time.monotonic() + PATIENCE_S
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                reply = await self._connections.call(self._addresses[step.store_id], code, fields, timeout_s=TIMEOUT_S)
                (outcome,) = decode_outcomes(reply.body)
                return str(outcome.verdict), ""
            except LaterMQError as error:
                if not error.retriable:
                    return REFUSED, error.message
                pause_s = backoff.next_pause()
                if time.monotonic() + pause_s > give_up_s:
                    raise
            await asyncio.sleep(pause_s)


def steps_of(plan: pa.Table) -> list[Step]:
    """The steps for the rows of a plan."""
    names = ("store_id", "timer_id", "topic", "unique_key", "new_due_ms", "timer_ids", "scheduled_before")
    # Plans of older versions lack the last two columns. Such a step acts only if its timer is the only one of its name.
    return [Step(**row) for row in plan.select([name for name in names if name in plan.schema.names]).to_pylist()]


def _fields(step: Step) -> dict[str, object]:
    return {name: getattr(step, name) for name in ("store_id", "timer_id", "topic", "unique_key", "new_due_ms")}


def _read(root: Root, path: str) -> pa.Table:
    with file_errors(path), root.files.open_input_file(path) as file:
        return pq.read_table(file)
