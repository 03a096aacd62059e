"""Execution of a bulk job's plan: its files by the executors or in this process, and a result file for each.

A file is repeatable as a whole: a repeated cancel has the same answer, and a repeated move the same effect.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from latermq.arrays import Indices, Ints8
from latermq.errors import CorruptStore, StoreError, UnsupportedRequest
from latermq.model.timer_changes import NO_TIME, TimerChanges
from latermq.model.timers import Verdict
from latermq.pipeline.bulk.bulk_job import files_in, job_folder
from latermq.pipeline.bulk.pieces import ERROR, executors_of, run_pieces
from latermq.pipeline.bulk.plan_steps import PATIENCE_S, REFUSED, run_steps, steps_of
from latermq.pipeline.bulk.row_frames import column_of
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.durable import sync_file, sync_folder
from latermq.pipeline.timeline.root import Root, file_errors, open_root, write_file
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.timer_changes import (
    ALONE,
    CHANGES_AT_ONCE,
    MAX_IDS,
    VERDICTS,
    decode_change_outcomes,
    encode_changes,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CHUNK_ROWS", "PLAN", "REFUSED", "run_plan", "sync_plan"]

PLAN, RESULTS = "plan", "results"
# The most rows that a file of a plan has, and so the most that are repeated after a killed run.
CHUNK_ROWS = 5_000
FILES_AT_ONCE = 2  # in one process
# Of one Spark job; progress is reported after each job. More tasks would only delay other clients of the brokers.
FILES_PER_JOB, TASKS = 64, 32

# Verdicts by number; a single request may also report the state of a timer.
_VERDICTS = [*map(str, VERDICTS), *(str(one) for one in Verdict if one not in VERDICTS)]
_NUMBER_OF = {verdict: number for number, verdict in enumerate(_VERDICTS)}
_ALONE = _NUMBER_OF[ALONE]

_COUNTS = f"verdict string, names bigint, {ERROR}"
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


def run_plan(
    root: Root,
    job: str,
    rows: int,
    namesrv: str,
    on_started: Callable[[int], None],
    on_done: Callable[[int], None],
    spark: "SparkSession | None" = None,
) -> tuple[int, Counter[str]]:
    """Execute the files that have no result yet. Returns the rows that had one, and the number of rows per verdict.

    `rows` is the size of the plan. A plan that has lost rows is refused rather than executed as if it were complete.
    With a session its executors do the work, and this process only counts, unless they would act as another user.
    """
    folder = job_folder(root, job)
    verdicts: Counter[str] = Counter()
    files = files_in(root, f"{folder}/{PLAN}", ".parquet")
    _check_rows(root, f"{folder}/{PLAN}", files, rows)
    finished = set(files_in(root, f"{folder}/{RESULTS}", ".parquet"))
    for name in sorted(finished):
        verdicts.update(_counts(_read(root, f"{folder}/{RESULTS}/{name}").column("verdict")))
    done_before = verdicts.total()
    on_started(done_before)
    left = [name for name in files if name not in finished]
    if left:
        plan = PlanFolder(root.uri, folder, addresses_by_store(namesrv))
        spark = executors_of(spark)
        for counts in _play_here(plan, left) if spark is None else _play_on_executors(spark, plan, left):
            verdicts += counts
            on_done(counts.total())
    return done_before, verdicts


class PlanFolder(NamedTuple):
    """A plan as tasks see it: the root, the job's folder below it, and the address of each store's broker."""

    root_uri: str
    folder: str
    addresses: dict[str, str]


def _play_here(plan: PlanFolder, names: Sequence[str]) -> Iterator[Counter[str]]:
    """Play these files in this process: one is prepared while the broker works on the other."""
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        # Not all at once: after a failure no further file may begin.
        for at in range(0, len(names), FILES_AT_ONCE):
            for future in [pool.submit(play_file, plan, name) for name in names[at : at + FILES_AT_ONCE]]:
                yield future.result()


def _play_on_executors(spark: "SparkSession", plan: PlanFolder, names: Sequence[str]) -> Iterator[Counter[str]]:
    from latermq.pipeline.source.part_frames import parallelism

    tasks = min(TASKS, parallelism(spark))
    for at in range(0, len(names), FILES_PER_JOB):
        chosen = list(names[at : at + FILES_PER_JOB])
        shares = [chosen[number::tasks] for number in range(min(tasks, len(chosen)))]

        def play(number: int, shares: list[list[str]] = shares) -> list[dict[str, object]]:
            counts = sum(_play_here(plan, shares[number]), Counter[str]())
            return [{"verdict": verdict, "names": count} for verdict, count in counts.items()]

        found = run_pieces(spark, "a task of the bulk job", len(shares), play, _COUNTS, len(shares))
        yield sum((Counter({row.verdict: row.names}) for row in found), Counter[str]())


def play_file(plan: PlanFolder, name: str) -> Counter[str]:
    """Cancel or move the names of one file, and write its result."""
    root = open_root(plan.root_uri)
    table = _read(root, f"{plan.folder}/{PLAN}/{name}")
    missing = set(table.column("store_id").unique().to_pylist()) - plan.addresses.keys()
    if missing:
        raise StoreError(
            f"the broker of store {', '.join(sorted(missing))} is unreachable",
            hint="Start it and run the job again; finished rows are not repeated",
        )
    verdicts = np.full(len(table), _ALONE, np.int8)
    details: dict[int, str] = {}
    for store_id, address in plan.addresses.items():
        rows = np.flatnonzero(pc.equal(table.column("store_id"), store_id).to_numpy(zero_copy_only=False))
        if len(rows):
            _change(table if len(rows) == len(table) else table.take(pa.array(rows)), rows, address, verdicts, details)
    alone = np.flatnonzero(verdicts == _ALONE)
    steps = run_steps(steps_of(table.take(pa.array(alone))), plan.addresses) if len(alone) else []
    for row, (verdict, detail) in zip(alone.tolist(), steps, strict=True):
        verdicts[row] = _NUMBER_OF[verdict]
        if detail:
            details[row] = detail
    names = pa.DictionaryArray.from_arrays(pa.array(verdicts), pa.array(_VERDICTS)).cast(pa.string())
    texts = pa.array([details.get(row, "") for row in range(len(table))] if details else np.full(len(table), ""))
    columns = [table.column(field.name) for field in _RESULT if field.name in table.schema.names]
    result = pa.Table.from_arrays([*columns, names, texts], schema=_RESULT)
    sink = pa.BufferOutputStream()
    pq.write_table(result, sink)
    write_file(root, f"{plan.folder}/{RESULTS}/{name}", sink.getvalue().to_pybytes())
    return _counts(result.column("verdict"))


def _change(table: pa.Table, rows: Indices, address: str, verdicts: Ints8, details: dict[int, str]) -> None:
    """Send the names of one store in bulk. Those that the broker does not change in bulk remain."""
    with BrokerLink(address, patience_s=PATIENCE_S) as link:
        at = 0
        for piece in _pieces(table):
            try:
                reply = link.call(Request.CHANGE_TIMERS, {}, encode_changes(piece))[1]
            except UnsupportedRequest:  # an older broker
                return
            outcomes = decode_change_outcomes(bytes(reply))
            verdicts[rows[at : at + len(piece)]] = outcomes.verdicts
            for offset, problem in outcomes.problems.items():
                details[int(rows[at + offset])] = problem
            at += len(piece)


def _pieces(table: pa.Table) -> Iterator[TimerChanges]:
    """The requests for a table, with a bounded number of names and timers each."""
    waiting = [table.slice(at, CHANGES_AT_ONCE) for at in range(0, len(table), CHANGES_AT_ONCE)][::-1]
    while waiting:
        piece = waiting.pop()
        changes = changes_of(piece)
        if len(piece) > 1 and len(changes.ids) > MAX_IDS:
            half = len(piece) // 2
            waiting += (piece.slice(half), piece.slice(0, half))
        else:
            yield changes


def changes_of(table: pa.Table) -> TimerChanges:
    """The names of a plan as the columns of a request.

    Plans of older versions list one timer per name, and do not say where the search for timers ended.
    """
    topics = table.column("topic").combine_chunks().dictionary_encode()
    offsets, ids = np.arange(len(table) + 1), table.column("timer_id").to_numpy()
    if "timer_ids" in table.schema.names:
        lists = table.column("timer_ids").combine_chunks()
        offsets = np.concatenate(([0], np.cumsum(pc.list_value_length(lists).to_numpy())))
        ids = lists.flatten().to_numpy()
    before = (
        pc.fill_null(table.column("scheduled_before"), NO_TIME).to_numpy()
        if "scheduled_before" in table.schema.names
        else np.full(len(table), NO_TIME)
    )
    return TimerChanges(
        topics.dictionary.to_pylist(),
        topics.indices.to_numpy().astype(np.uint16),
        column_of(table.column("unique_key").combine_chunks()),
        pc.fill_null(table.column("new_due_ms").cast(pa.int64()), NO_TIME).to_numpy(),
        before.astype(np.int64),
        offsets.astype(np.int64),
        ids.astype(np.int64),
    )


def _counts(verdicts: pa.ChunkedArray) -> Counter[str]:
    return Counter({pair["values"]: pair["counts"] for pair in pc.value_counts(verdicts).to_pylist()})


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


def _read(root: Root, path: str) -> pa.Table:
    with file_errors(path), root.files.open_input_file(path) as file:
        return pq.read_table(file)
