"""Coverage by package, printed by `python -m tests.support.coverage_table` from the data of `make coverage`."""

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from coverage import Coverage

ROOT = Path(__file__).resolve().parents[2]
SOURCE = PurePath("src")
_COUNTS = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def load_counts() -> Mapping[str, Mapping[str, Any]]:
    """Return the counts of coverage.py by file."""
    coverage = Coverage(config_file=str(ROOT / "pyproject.toml"))
    coverage.load()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        coverage.json_report(outfile=str(report))
        files: Mapping[str, Mapping[str, Any]] = json.loads(report.read_text())["files"]
        return files


def by_package(files: Mapping[str, Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """Sum the counts by package, sorted by name. Packages without code are omitted."""
    packages: dict[str, Counter[str]] = {}
    for name, figures in sorted(files.items()):
        package = ".".join(PurePath(name).relative_to(SOURCE).parent.parts)
        packages.setdefault(package, Counter()).update({count: figures["summary"][count] for count in _COUNTS})
    return {name: counts for name, counts in sorted(packages.items()) if counts["num_statements"]}


def table(packages: Mapping[str, Counter[str]]) -> Iterator[str]:
    """The lines of a Markdown table. Coverage includes lines and branches, as in coverage.py."""
    yield "| package | lines | not run | branches | not taken | coverage |"
    yield "|---|---|---|---|---|---|"
    total = sum(packages.values(), Counter[str]())
    for name, counts in [*packages.items(), ("all", total)]:
        lines, run, branches, taken = (counts[count] for count in _COUNTS)
        share = (run + taken) / max(1, lines + branches)
        yield f"| {name} | {lines:,} | {lines - run:,} | {branches:,} | {branches - taken:,} | {share:.1%} |"


if __name__ == "__main__":
    print("\n".join(table(by_package(load_counts()))))
