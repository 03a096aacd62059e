"""The table of `make coverage`."""

from collections import Counter
from typing import Any

from tests.support.coverage_table import by_package, table


def test_coverage_is_summed_by_package() -> None:
    def figures(lines: int, run: int, branches: int, taken: int) -> dict[str, Any]:
        counts = {"num_statements": lines, "covered_lines": run, "num_branches": branches, "covered_branches": taken}
        return {"summary": counts}

    packages = by_package({
        "src/latermq/store/block.py": figures(10, 9, 4, 2),
        "src/latermq/store/disk.py": figures(30, 20, 6, 4),
        "src/latermq/__init__.py": figures(8, 8, 0, 0),
        "src/latermq/protocol/__init__.py": figures(0, 0, 0, 0),
    })  # fmt: skip
    assert packages["latermq.store"] == Counter(
        num_statements=40, covered_lines=29, num_branches=10, covered_branches=6
    )
    assert list(table(packages))[2:] == [
        "| latermq | 8 | 0 | 0 | 0 | 100.0% |",
        "| latermq.store | 40 | 11 | 10 | 4 | 70.0% |",
        "| all | 48 | 11 | 10 | 4 | 74.1% |",
    ]
