"""`python -m tests.bench`: LaterMQ and Apache RocketMQ side by side on this machine; a report, never a verdict."""

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench.contenders import APACHE, LATERMQ, running_apache, running_latermq
from tests.bench.load import Load, start_load
from tests.bench.path import measure_path
from tests.bench.reporting import markdown, save_json
from tests.bench.scenarios import Row, SideBySide, Sizes

PATH = "path"
SIDE_BY_SIDE = (
    "send-async", "send-sync", "cpu-per-send", "consume", "levels", "levels-paced", "levels-burst", "restart",
)  # fmt: skip
SCENARIOS = (*SIDE_BY_SIDE, PATH)
NEEDED_TOOLS = ("java", "javac", "mvn")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    defaults = Sizes()
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"{', '.join(SCENARIOS)}; without any: all")
    parser.add_argument(
        "--messages", type=int, default=defaults.messages, help="messages a run; see docs/benchmarks.md"
    )
    parser.add_argument("--repeats", type=int, default=defaults.repeats, help="runs of which the median is told")
    parser.add_argument("--warm", type=int, default=defaults.warm, help="sends thrown away before the first run")
    parser.add_argument("--stored", type=int, default=defaults.stored, help="messages stored when the broker is killed")
    parser.add_argument("--size", type=int, default=defaults.size, help="bytes in each body")
    parser.add_argument("--in-flight", type=int, default=defaults.in_flight, help="async sends without an answer")
    parser.add_argument("--async-threads", type=int, default=defaults.async_threads)
    parser.add_argument("--sync-threads", type=int, default=defaults.sync_threads)
    parser.add_argument("--rate", type=float, default=defaults.rate, help="sends a second in cpu-per-send")
    parser.add_argument("--delayed", type=int, default=defaults.delayed, help="messages in levels and levels-paced")
    parser.add_argument("--level", type=int, default=defaults.level, help="their delay level")
    parser.add_argument("--burst", type=int, default=defaults.burst, help="messages that fall due together")
    parser.add_argument("--only", choices=("latermq", "apache"), help="measure one of the two")
    parser.add_argument("--folder", type=Path, help="where stores are kept while it runs; else a temporary folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single figure there")
    options = parser.parse_args(argv)
    unknown = [name for name in options.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    if min(options.messages, options.repeats, options.warm, options.stored, options.delayed, options.burst) < 1:
        parser.error("sizes and repeats are at least 1")
    return options


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
    )


def run_side_by_side(names: Sequence[str], sizes: Sizes, only: str | None, folder: Path, rows: list[Row]) -> None:
    with contextlib.ExitStack() as running:
        starts = {LATERMQ: running_latermq, APACHE: running_apache}
        wanted = {"latermq": [LATERMQ], "apache": [APACHE]}.get(only or "", [LATERMQ, APACHE])
        contenders = [running.enter_context(starts[name](folder / name.split()[0].lower())) for name in wanted]
        load = Load(running.enter_context(start_load(folder)), contenders)
        bench = SideBySide(contenders, load, sizes)
        # In the order of the list: a restart leaves a cold broker behind.
        for name in SIDE_BY_SIDE:
            if name in names:
                rows.extend(bench.scenarios[name]())


def run_path(sizes: Sizes, folder: Path, rows: list[Row]) -> None:
    for repeat in range(sizes.repeats):
        store = folder / f"path-{repeat}"
        figures = measure_path(store, max(sizes.third, 1_000), sizes.size)
        shutil.rmtree(store)
        rows.append(Row(PATH, LATERMQ, repeat, figures))


def run(options: argparse.Namespace, rows: list[Row]) -> None:
    names, sizes = options.scenarios or SCENARIOS, sizes_of(options)
    with tempfile.TemporaryDirectory(prefix="latermq-bench-", dir=options.folder) as folder:
        if any(name in SIDE_BY_SIDE for name in names):
            run_side_by_side(names, sizes, options.only, Path(folder), rows)
        if PATH in names:
            run_path(sizes, Path(folder), rows)


def main(argv: Sequence[str]) -> int:
    options = arguments(argv)
    missing = [tool for tool in NEEDED_TOOLS if shutil.which(tool) is None]
    if missing and list(options.scenarios) != [PATH]:
        print(f"{', '.join(missing)} not found: only `python -m tests.bench path` runs without", file=sys.stderr)
        return 2
    # A benchmark that is told to end cleans up as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rows: list[Row] = []
    try:
        run(options, rows)
    except KeyboardInterrupt:
        print(f"interrupted after {len(rows)} runs", file=sys.stderr)
        return 130
    finally:
        # What was measured before something failed is told, too.
        if rows:
            command = " ".join(("python -m tests.bench", *argv))
            print(markdown(rows, command))
            if options.json is not None:
                save_json(rows, command, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
