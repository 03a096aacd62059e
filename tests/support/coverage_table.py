"""Coverage by package, printed by `python -m tests.support.coverage_table` from what `make coverage` measured."""

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


def measured() -> Mapping[str, Mapping[str, Any]]:
    """File → what coverage.py counted in it."""
    coverage = Coverage(config_file=str(ROOT / "pyproject.toml"))
    coverage.load()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        coverage.json_report(outfile=str(report))
        files: Mapping[str, Mapping[str, Any]] = json.loads(report.read_text())["files"]
        return files


def by_package(files: Mapping[str, Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """The counts of each folder with code in it, in the order of their names."""
    packages: dict[str, Counter[str]] = {}
    for name, figures in sorted(files.items()):
        package = ".".join(PurePath(name).relative_to(SOURCE).parent.parts)
        packages.setdefault(package, Counter()).update({count: figures["summary"][count] for count in _COUNTS})
    return {name: counts for name, counts in sorted(packages.items()) if counts["num_statements"]}


def table(packages: Mapping[str, Counter[str]]) -> Iterator[str]:
    """The lines of a Markdown table. Coverage is that of lines and branches together, as coverage.py has it."""
    yield "| package | lines | not run | branches | not taken | coverage |"
    yield "|---|---|---|---|---|---|"
    total = sum(packages.values(), Counter[str]())
    for name, counts in [*packages.items(), ("all", total)]:
        lines, run, branches, taken = (counts[count] for count in _COUNTS)
        share = (run + taken) / max(1, lines + branches)
        yield f"| {name} | {lines:,} | {lines - run:,} | {branches:,} | {branches - taken:,} | {share:.1%} |"


if __name__ == "__main__":
    print("\n".join(table(by_package(measured()))))
