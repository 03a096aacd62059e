"""Bulk cancel and move: a plan of many names, played against a broker in bulk, and a part of it one by one."""

import hashlib
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from latermq.pipeline.bulk.plan_runner import CHUNK_ROWS, PLAN, addresses_by_store, run_plan
from latermq.pipeline.bulk.plan_steps import run_steps, steps_of
from latermq.pipeline.bulk.row_frames import Target, requests_of
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.root import Root, open_root
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.rows import decode_rows
from tests.bench.contenders import LATERMQ, LaterMQ
from tests.bench.load import Figures, cpu_s_of
from tests.bench.scenarios import Row
from tests.bench.sizes import Sizes
from tests.interop.waiting import wait_until

TOPIC = "bench-bulk"
AHEAD_MS = 20 * 60_000
ONE_BY_ONE = 5_000  # names of the plan that are sent in single requests, for comparison


class CpuTimes:
    """CPU time of the broker and of this process, from now on."""

    def __init__(self, broker_pid: int) -> None:
        self._broker_pid = broker_pid
        self._before_s = self._used_s()

    def _used_s(self) -> tuple[float, float]:
        return cpu_s_of(self._broker_pid), time.process_time()

    def figures(self, what: str, count: int) -> Figures:
        """Microseconds for each of `count` pieces of work."""
        spent = [(now - before) * 1e6 / count for now, before in zip(self._used_s(), self._before_s, strict=True)]
        return {f"{what}, broker CPU (µs)": spent[0], f"{what}, sender CPU (µs)": spent[1]}


def run_bulk_changes(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Names per second of a bulk cancel and of a bulk move, from the plan's files to their results."""
    with ExitStack() as stack:
        broker = LaterMQ(folder / "broker", LATERMQ, "wheel", ())
        stack.callback(broker.close)
        broker.start()
        [(_, address)] = wait_until(lambda: masters(broker.namesrv), 30, "the broker").items()
        link = stack.enter_context(closing(BrokerLink(address)))
        [(store_id, _)] = addresses_by_store(broker.namesrv).items()
        root = open_root(str(folder / "pipeline"))
        for repeat in range(sizes.repeats):
            for action in ("cancel", "move"):
                job = f"{action}-{repeat}"
                plan = _scheduled(link, store_id, job, sizes.bulk, is_move=action == "move")
                alone = plan.slice(0, min(ONE_BY_ONE, len(plan) // 4))
                began_s = time.perf_counter()
                found = run_steps(steps_of(alone), {store_id: address})
                single_s = time.perf_counter() - began_s
                assert {verdict for verdict, _ in found} == {"cancelled" if action == "cancel" else "moved"}
                rest = plan.slice(len(alone))
                _write_plan(root, job, rest)
                times = CpuTimes(broker.broker_pid)
                began_s = time.perf_counter()
                _, verdicts = run_plan(root, job, len(rest), broker.namesrv, lambda done: None, lambda done: None)
                bulk_s = time.perf_counter() - began_s
                assert verdicts == {"cancelled" if action == "cancel" else "moved": len(rest)}
                figures = {"names/s": len(rest) / bulk_s, "names/s, one by one": len(alone) / single_s}
                figures |= times.figures("names", len(rest))
                yield Row(f"bulk-{action}", LATERMQ, repeat, figures)


def _scheduled(link: BrokerLink, store_id: str, job: str, count: int, *, is_move: bool) -> pa.Table:
    """Schedule timers, and return the plan that cancels or moves them."""
    now_ms = time.time_ns() // 1_000_000
    state = link.state(flush=True)
    first = state.flushed_entry
    target = Target(job, ("broker",), topic=TOPIC, now_ms=now_ms)
    dues = now_ms + AHEAD_MS + np.arange(count)
    rows = pa.RecordBatch.from_pydict({"key": [f"{job}-{number}" for number in range(count)], "due_ms": dues})
    keys: list[str] = []
    for request in requests_of(rows, target):
        link.call(Request.SCHEDULE_ROWS, {"job": job}, request.body)
        keys += [key.decode() for key in decode_rows(request.body).unique_keys.values()]
    end = link.state(flush=True).flushed_entry
    assert end - first == count, "nothing else is scheduled"
    ids = np.arange(first, end)
    order = np.argsort([hashlib.blake2b(key.encode()).digest()[:8] for key in keys])  # as unsorted as a real plan
    return pa.table(
        {
            "store_id": [store_id] * count,
            "timer_id": ids,
            "topic": [TOPIC] * count,
            "unique_key": keys,
            "due_ms": dues,
            "timers": np.ones(count, np.int64),
            "new_due_ms": pa.array(dues + 60_000) if is_move else pa.nulls(count, pa.int64()),
            "timer_ids": [[one] for one in ids.tolist()],
            "scheduled_before": np.full(count, end),
        }
    ).take(pa.array(order))


def _write_plan(root: Root, job: str, plan: pa.Table) -> None:
    folder = Path(root.path) / "bulk" / job / PLAN
    folder.mkdir(parents=True)
    for number, at in enumerate(range(0, len(plan), CHUNK_ROWS)):
        pq.write_table(plan.slice(at, CHUNK_ROWS), folder / f"part-{number:05d}.parquet")
