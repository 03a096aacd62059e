"""Results as a readable Markdown table, and as JSON with every single figure."""

import json
import os
import platform
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.bench.contenders import (
    APACHE,
    APACHE_FINE,
    APACHE_USERS,
    LATERMQ,
    LATERMQ_ROCKSDB,
    LATERMQ_USERS,
)
from tests.bench.load import OTHER_CPU
from tests.bench.proxies import APACHE_CLUSTER, APACHE_LOCAL
from tests.bench.scenarios import Row

# Only in the JSON: they explain other figures.
_JSON_ONLY = {"latency max (ms)", "client CPU (µs/message)", "waiting broker CPU (cores)", OTHER_CPU}
_COLUMNS = (
    LATERMQ,
    LATERMQ_ROCKSDB,
    LATERMQ_USERS,
    APACHE,
    APACHE_FINE,
    APACHE_USERS,
    APACHE_LOCAL,
    APACHE_CLUSTER,
)
_RATIOS = {
    "ratio": (LATERMQ, APACHE),
    "ratio, 100 ms": (LATERMQ, APACHE_FINE),
    "ratio, users": (LATERMQ_USERS, APACHE_USERS),
    "users, none = 1": (LATERMQ_USERS, LATERMQ),
    "Apache's users, none = 1": (APACHE_USERS, APACHE),
    "ratio, local": (LATERMQ, APACHE_LOCAL),
    "ratio, cluster": (LATERMQ, APACHE_CLUSTER),
}
# Scenarios that compare other contenders than LaterMQ and Apache's broker have their own table.
_OWN_TABLES = ((LATERMQ_ROCKSDB, APACHE_FINE), (LATERMQ_USERS, APACHE_USERS), (APACHE_LOCAL, APACHE_CLUSTER))
_QUIET_CORES = 0.1  # more work of other processes affects a machine with two cores by 5 %


def machine() -> dict[str, str]:
    """The machine on which the figures were measured."""
    cpu = next((line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if "model name" in line), "?")
    memory_kib = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "cores": str(os.cpu_count()),
        "cpu": cpu,
        "memory": f"{memory_kib / 2**20:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": _java_version(),
    }


def medians(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """scenario → figure → broker → median of its repeats."""
    return {
        scenario: {
            figure: {contender: statistics.median(values) for contender, values in by_contender.items()}
            for figure, by_contender in figures.items()
        }
        for scenario, figures in _grouped(rows).items()
    }


def markdown(rows: Sequence[Row], command: str) -> str:
    """The medians with their range, and the ratio of LaterMQ to Apache where both were measured.

    Scenarios that compare more than those two have their own table.
    """
    lines = [f"`{command}`", "", ", ".join(f"{key} {value}" for key, value in machine().items()), ""]
    own = {row.scenario: table for row in rows for table in _OWN_TABLES if row.contender in table}
    tables = [[row for row in rows if own.get(row.scenario) == table] for table in (None, *_OWN_TABLES)]
    lines += "\n\n".join("\n".join(_table(_cells(part))) for part in tables if part).splitlines()
    noisy = [row for row in rows if row.figures.get(OTHER_CPU, 0.0) > _QUIET_CORES]
    if noisy:
        lines += ["", f"{len(noisy)} of {len(rows)} runs shared the machine with other work: repeat when it is quiet."]
    return "\n".join(lines)


def _cells(rows: Sequence[Row]) -> list[list[str]]:
    measured = {row.contender for row in rows}
    columns = [name for name in _COLUMNS if name in measured]
    ratios = {head: pair for head, pair in _RATIOS.items() if measured.issuperset(pair)}
    cells = [["scenario", "figure", *columns, *ratios]]
    for scenario, figures in _grouped(rows).items():
        for figure, by_contender in figures.items():
            if figure in _JSON_ONLY or not any(map(any, by_contender.values())):
                continue
            values = [_spread(by_contender.get(name, [])) for name in columns]
            cells.append([scenario, figure, *values, *(_ratio(by_contender, *pair) for pair in ratios.values())])
    return cells


def save_json(rows: Sequence[Row], command: str, file: Path) -> None:
    document = {
        "command": command,
        "machine": machine(),
        "medians": medians(rows),
        "runs": [asdict(row) for row in rows],
    }
    file.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _grouped(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, list[float]]]]:
    grouped: dict[str, dict[str, dict[str, list[float]]]] = {}
    for row in rows:
        for figure, value in row.figures.items():
            grouped.setdefault(row.scenario, {}).setdefault(figure, {}).setdefault(row.contender, []).append(value)
    return grouped


def _table(cells: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    rule = ["-" * width if column < 2 else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    padded = (
        [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in (cells[0], rule, *cells[1:])
    )
    return [f"| {' | '.join(row)} |" for row in padded]


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    middle = _number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({_number(min(values))}–{_number(max(values))})"


def _ratio(by_contender: dict[str, list[float]], of: str, to: str) -> str:
    ours, theirs = by_contender.get(of), by_contender.get(to)
    if not ours or not theirs or not statistics.median(theirs):
        return ""
    return f"{statistics.median(ours) / statistics.median(theirs):.2f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _lines(path: str) -> list[str]:
    return Path(path).read_text(errors="replace").splitlines()


def _java_version() -> str:
    if shutil.which("java") is None:
        return "none"
    output = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    return output.partition('"')[2].partition('"')[0]
