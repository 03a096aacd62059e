"""`python -m tests.bench`: compare LaterMQ and Apache RocketMQ on this machine. It reports figures, not a verdict."""

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.access_load import ACCESS, AccessSideBySide
from tests.bench.attacks import measure_attacks
from tests.bench.bulk_changes import run_bulk_changes
from tests.bench.bulk_schedule import run_bulk_schedule
from tests.bench.contenders import (
    APACHE,
    APACHE_FINE,
    APACHE_USERS,
    LATERMQ,
    LATERMQ_ROCKSDB,
    LATERMQ_USERS,
    run_contender,
)
from tests.bench.far_bytes import measure_far_bytes
from tests.bench.grpc_load import GrpcLoad, start_grpc_load, start_java5_load
from tests.bench.grpc_scenarios import GrpcSideBySide
from tests.bench.http_console import run_http
from tests.bench.http_far import run_http_far
from tests.bench.load import Load, start_load
from tests.bench.path import measure_path
from tests.bench.pipeline import run_near, run_pipeline
from tests.bench.pipeline_sql import run_pipeline_sql
from tests.bench.pop_path import measure_pop_path
from tests.bench.pop_state import measure_pop_state
from tests.bench.proxies import APACHE_CLUSTER, APACHE_LOCAL, run_proxy
from tests.bench.proxy_path import measure_proxy_path
from tests.bench.report import markdown, save_json
from tests.bench.roll import measure_roll
from tests.bench.scenarios import Row, SideBySide, print_row
from tests.bench.sizes import Sizes
from tests.bench.timeline import run_timeline
from tests.support.needs import find_tool

PATH = "path"
PROXY_PATH = "proxy-path"
POP_STATE = "pop-state"
POP_PATH = "pop-path"
ATTACKS = "attacks"
ROLL = "timers-roll"
PIPELINE = "pipeline"
NEAR = "pipeline-near"
FAR_BYTES = "far-bytes"
BULK = "bulk-cancel"
BULK_SCHEDULE = "bulk-schedule"
TIMELINE = "timeline"
SQL = "pipeline-sql"
HTTP = "http"
HTTP_FAR = "http-far"
# In execution order: scenarios that fill a broker come late, and a restart leaves a cold broker.
PAIRED = (
    "send-async", "send-sync", "cpu-per-send", "consume", "levels", "levels-paced", "levels-burst", "restart",
)  # fmt: skip
TIMERS = ("timers-spread", "timers-burst", "timers-pending", "timers-grow", "timers-restart")
GRPC = (
    "grpc-waiting", "grpc-send", "grpc-receive", "grpc-send-tls", "grpc-receive-tls", "grpc-java", "grpc-delay",
    "pop-pull",
)  # fmt: skip
SIDE_BY_SIDE = (*PAIRED, *TIMERS, *GRPC, *ACCESS)
NO_CLIENT = (
    PATH,
    PROXY_PATH,
    POP_STATE,
    POP_PATH,
    ATTACKS,
    ROLL,
    FAR_BYTES,
    BULK,
    BULK_SCHEDULE,
    PIPELINE,
    TIMELINE,
    SQL,
    HTTP,
    HTTP_FAR,
)  # without Apache's client
SCENARIOS = (*SIDE_BY_SIDE, *NO_CLIENT, NEAR)
# The contenders of each group of scenarios, measured one after the other on the same machine.
ROUNDS = {
    PAIRED: (LATERMQ, APACHE),
    TIMERS: (LATERMQ, LATERMQ_ROCKSDB, APACHE, APACHE_FINE),
    GRPC: (LATERMQ, APACHE_LOCAL, APACHE_CLUSTER),
    ACCESS: (LATERMQ, LATERMQ_USERS, APACHE, APACHE_USERS),
}
FAMILIES = {
    "latermq": (LATERMQ, LATERMQ_ROCKSDB, LATERMQ_USERS),
    "apache": (APACHE, APACHE_FINE, APACHE_LOCAL, APACHE_CLUSTER, APACHE_USERS),
}
NEEDED_TOOLS = ("java", "javac", "mvn")
GRPC_TOOLS = ("go",)


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    defaults = Sizes()
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"{', '.join(SCENARIOS)}; default: all")
    parser.add_argument(
        "--messages", type=int, default=defaults.messages, help="messages per run; see docs/benchmarks.md"
    )
    parser.add_argument(
        "--repeats", type=int, default=defaults.repeats, help="runs per scenario; the median is reported"
    )
    parser.add_argument("--warm", type=int, default=defaults.warm, help="warm-up sends before the first run")
    parser.add_argument("--stored", type=int, default=defaults.stored, help="messages stored when the broker is killed")
    parser.add_argument("--size", type=int, default=defaults.size, help="bytes in each body")
    parser.add_argument("--in-flight", type=int, default=defaults.in_flight, help="async sends without a response")
    parser.add_argument("--async-threads", type=int, default=defaults.async_threads)
    parser.add_argument("--sync-threads", type=int, default=defaults.sync_threads)
    parser.add_argument("--rate", type=float, default=defaults.rate, help="sends per second in cpu-per-send")
    parser.add_argument("--delayed", type=int, default=defaults.delayed, help="messages in levels and levels-paced")
    parser.add_argument("--level", type=int, default=defaults.level, help="their delay level")
    parser.add_argument("--burst", type=int, default=defaults.burst, help="messages due at the same time")
    parser.add_argument("--timers", type=int, default=defaults.timers, help="timers in timers-spread and timers-grow")
    parser.add_argument("--spread", type=float, default=defaults.spread_s, help="seconds over which they are due")
    parser.add_argument(
        "--pending", type=_counts, default=defaults.pending, help="pending timers, for example 100000,1000000"
    )
    parser.add_argument("--sample", type=int, default=defaults.sample, help="timers measured in timers-pending")
    parser.add_argument("--growth", type=float, default=defaults.growth, help="timers per second in timers-grow")
    parser.add_argument("--rolled", type=int, default=defaults.rolled, help="timers in timers-roll")
    parser.add_argument(
        "--far-warm",
        type=int,
        default=defaults.far_warm,
        help="rows before the first part in pipeline, timers in far-bytes",
    )
    parser.add_argument("--far-part", type=int, default=defaults.far_part, help="rows per part in pipeline")
    parser.add_argument("--far-parts", type=int, default=defaults.far_parts, help="parts of the timeline in pipeline")
    parser.add_argument("--far-near", type=int, default=defaults.far_near, help="far timers in pipeline-near")
    parser.add_argument(
        "--bulk", type=int, default=defaults.bulk, help="names in bulk-cancel and bulk-move, rows in bulk-schedule"
    )
    parser.add_argument(
        "--timeline-rows",
        type=_counts,
        default=defaults.timeline_rows,
        help="rows in timeline, pipeline-sql, http-far",
    )
    parser.add_argument("--attack", type=float, default=defaults.attack_s, help="seconds per attack in attacks")
    parser.add_argument("--calm", type=float, default=defaults.calm_s, help="seconds between the steps of timer runs")
    parser.add_argument("--grpc-warm", type=float, default=defaults.grpc_warm_s, help="seconds of warm-up sends")
    parser.add_argument("--grpc-seconds", type=float, default=defaults.grpc_s, help="seconds per run of grpc-send")
    parser.add_argument(
        "--grpc-messages", type=int, default=defaults.grpc_messages, help="messages in grpc-receive and pop-pull"
    )
    parser.add_argument("--grpc-delayed", type=int, default=defaults.grpc_delayed, help="messages in grpc-delay")
    parser.add_argument(
        "--grpc-spread", type=float, default=defaults.grpc_spread_s, help="seconds over which they are due"
    )
    parser.add_argument(
        "--grpc-ahead", type=float, default=defaults.grpc_ahead_s, help="seconds from their first send to the first due"
    )
    parser.add_argument(
        "--grpc-invisible", type=float, default=defaults.grpc_invisible_s, help="invisible time in seconds, 10 or more"
    )
    parser.add_argument(
        "--grpc-later", type=float, default=defaults.grpc_later_s, help="seconds to wait for work after that time"
    )
    parser.add_argument("--waiting", type=int, default=defaults.waiting, help="waiting receivers in grpc-waiting")
    parser.add_argument("--http-requests", type=int, default=defaults.http_requests, help="single requests in http")
    parser.add_argument("--http-timers", type=int, default=defaults.http_timers, help="timers in batches of 10,000")
    parser.add_argument("--viewers", type=int, default=defaults.viewers, help="viewers of the overview in http")
    parser.add_argument("--watch", type=float, default=defaults.watch_s, help="seconds that they look at it")
    parser.add_argument("--only", choices=tuple(FAMILIES), help="measure only one of the two brokers")
    parser.add_argument("--folder", type=Path, help="folder for stores during the run; default: a temporary folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single figure to FILE")
    options = parser.parse_args(argv)
    unknown = [name for name in options.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"unknown scenario {', '.join(unknown)}; use {', '.join(SCENARIOS)}")
    counts = (
        options.messages, options.repeats, options.warm, options.stored, options.delayed, options.burst,
        options.timers, *options.pending, options.sample, options.growth, options.rolled, options.far_warm,
        options.far_part, options.far_parts, options.far_near, options.bulk, options.grpc_messages,
        options.grpc_delayed, options.waiting, *options.timeline_rows, options.http_requests, options.http_timers,
        options.viewers,
    )  # fmt: skip
    if min(counts) < 1:
        parser.error("sizes and repeats must be at least 1")
    return options


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted(map(int, text.split(","))))


def sizes_of(options: argparse.Namespace) -> Sizes:
    return Sizes(
        messages=options.messages,
        repeats=options.repeats,
        warm=options.warm,
        stored=options.stored,
        size=options.size,
        async_threads=options.async_threads,
        in_flight=options.in_flight,
        sync_threads=options.sync_threads,
        rate=options.rate,
        delayed=options.delayed,
        level=options.level,
        burst=options.burst,
        timers=options.timers,
        spread_s=options.spread,
        pending=options.pending,
        sample=options.sample,
        growth=options.growth,
        rolled=options.rolled,
        far_warm=options.far_warm,
        far_part=options.far_part,
        far_parts=options.far_parts,
        far_near=options.far_near,
        bulk=options.bulk,
        timeline_rows=options.timeline_rows,
        attack_s=options.attack,
        calm_s=options.calm,
        grpc_warm_s=options.grpc_warm,
        grpc_s=options.grpc_seconds,
        grpc_messages=options.grpc_messages,
        grpc_delayed=options.grpc_delayed,
        grpc_spread_s=options.grpc_spread,
        grpc_ahead_s=options.grpc_ahead,
        grpc_invisible_s=options.grpc_invisible,
        grpc_later_s=options.grpc_later,
        waiting=options.waiting,
        http_requests=options.http_requests,
        http_timers=options.http_timers,
        viewers=options.viewers,
        watch_s=options.watch,
    )


def run_side_by_side(names: Sequence[str], wanted: Sequence[str], sizes: Sizes, folder: Path, rows: list[Row]) -> None:
    """Start the contenders, run these scenarios on them, and stop them."""
    with contextlib.ExitStack() as stack:
        contenders = [stack.enter_context(run_contender(name, folder)) for name in wanted]
        load = Load(stack.enter_context(start_load(folder)), contenders)
        kind = AccessSideBySide if set(names) <= set(ACCESS) else SideBySide
        bench = kind(contenders, load, sizes)
        for name in names:
            rows.extend(bench.scenarios[name]())


def run_grpc(names: Sequence[str], wanted: Sequence[str], sizes: Sizes, folder: Path, rows: list[Row]) -> None:
    """The same for the proxies."""
    with contextlib.ExitStack() as stack:
        contenders = [stack.enter_context(run_proxy(name, folder)) for name in wanted]
        load = GrpcLoad(stack.enter_context(start_grpc_load(folder)), contenders, sizes)

        def official() -> GrpcLoad:
            return GrpcLoad(stack.enter_context(start_java5_load(folder)), contenders, sizes)

        bench = GrpcSideBySide(contenders, load, sizes, official)
        for name in names:
            rows.extend(bench.scenarios[name]())


def run_path(sizes: Sizes, folder: Path) -> Iterator[Row]:
    for repeat in range(sizes.repeats):
        figures = measure_path(folder / str(repeat), max(sizes.third, 1_000), sizes.size)
        yield Row(PATH, LATERMQ, repeat, figures)


def run_proxy_path(sizes: Sizes, folder: Path) -> Iterator[Row]:
    for repeat in range(sizes.repeats):
        figures = measure_proxy_path(folder / str(repeat), max(sizes.third, 1_000), sizes.size)
        yield Row(PROXY_PATH, LATERMQ, repeat, figures)


def run_pop_state(sizes: Sizes, folder: Path) -> Iterator[Row]:
    for repeat in range(sizes.repeats):
        figures = measure_pop_state(folder / str(repeat), max(sizes.third // 1_000 * 1_000, 1_024))
        yield Row(POP_STATE, LATERMQ, repeat, figures)


def run_pop_path(sizes: Sizes, folder: Path) -> Iterator[Row]:
    for repeat in range(sizes.repeats):
        figures = measure_pop_path(folder / str(repeat), max(sizes.third, 1_000), sizes.size)
        yield Row(POP_PATH, LATERMQ, repeat, figures)


def run_attacks(sizes: Sizes, folder: Path) -> Iterator[Row]:
    for name, figures in measure_attacks(folder, sizes.attack_s):
        yield Row(ATTACKS, LATERMQ, 0, {f"{name}: {figure}": value for figure, value in figures.items()})


def run_roll(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Run once, because bytes do not depend on the load of the machine."""
    for name, engine in ((LATERMQ, "wheel"), (LATERMQ_ROCKSDB, "rocksdb")):
        yield Row(ROLL, name, 0, measure_roll(folder / engine, engine, sizes.rolled, sizes.size))


def run_far_bytes(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Run once, as for `timers-roll`."""
    total = 0.0
    for stage, figures in measure_far_bytes(folder, sizes.far_warm, sizes.size):
        total += (stage_bytes := sum(figures.values()))
        yield Row(f"{FAR_BYTES}, {stage}", LATERMQ, 0, {**figures, "sum (bytes/timer)": stage_bytes})
    yield Row(FAR_BYTES, LATERMQ, 0, {"sum of all stages (bytes/timer)": total})


def run(options: argparse.Namespace, rows: list[Row]) -> None:
    names, sizes = options.scenarios or SCENARIOS, sizes_of(options)
    with tempfile.TemporaryDirectory(prefix="latermq-bench-", dir=options.folder) as folder:
        for number, (scenarios, contenders) in enumerate(ROUNDS.items()):
            own = Path(folder) / f"round-{number}"
            own.mkdir()
            wanted = [name for name in scenarios if name in names]
            if wanted:
                contender_names = [name for name in contenders if name in FAMILIES.get(options.only, contenders)]
                run_round = run_grpc if scenarios is GRPC else run_side_by_side
                run_round(wanted, contender_names, sizes, own, rows)
            shutil.rmtree(own)
        own_scenarios = {
            PATH: run_path, PROXY_PATH: run_proxy_path, POP_STATE: run_pop_state, POP_PATH: run_pop_path,
            ATTACKS: run_attacks, ROLL: run_roll, FAR_BYTES: run_far_bytes, BULK: run_bulk_changes,
            BULK_SCHEDULE: run_bulk_schedule,
            PIPELINE: run_pipeline, NEAR: run_near, TIMELINE: run_timeline,
            SQL: run_pipeline_sql, HTTP: run_http, HTTP_FAR: run_http_far,
        }  # fmt: skip
        for name, measure in own_scenarios.items():
            if name in names:
                own = Path(folder) / name
                own.mkdir()
                rows.extend(map(print_row, measure(sizes, own)))
                shutil.rmtree(own)


def needed_tools(options: argparse.Namespace) -> tuple[str, ...]:
    wanted = set(options.scenarios or SCENARIOS) - set(NO_CLIENT)
    uses_grpc = GRPC_TOOLS if wanted & set(GRPC) else ()
    # The load for the proxies is a Go program: LaterMQ alone is measured without Java.
    without_java = set(GRPC) - {"grpc-java"} if options.only == "latermq" else set()
    uses_java = NEEDED_TOOLS if wanted - without_java else ()
    return (*uses_java, *uses_grpc)


def main(argv: Sequence[str]) -> int:
    options = arguments(argv)
    missing = [tool for tool in needed_tools(options) if find_tool(tool) is None]
    if missing:
        print(f"{', '.join(missing)} not found; only {', '.join(NO_CLIENT)} run without it", file=sys.stderr)
        return 2
    # SIGTERM cleans up like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rows: list[Row] = []
    try:
        run(options, rows)
    except KeyboardInterrupt:
        print(f"interrupted after {len(rows)} runs", file=sys.stderr)
        return 130
    finally:
        # Figures measured before a failure are reported too.
        if rows:
            command = " ".join(("python -m tests.bench", *argv))
            print(markdown(rows, command))
            if options.json is not None:
                save_json(rows, command, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
