"""What a compaction rewrites: new files, and files that overlap too often. Each row is rewritten a few times only."""

from random import Random

from latermq.pipeline.timeline.data_files import DataFile
from latermq.pipeline.timeline.rewrite_plan import RewriteLimits, rewrite_groups

MIB = 1 << 20
DAY_MS = 86_400_000
LIMITS = RewriteLimits(sort_bytes=100, file_bytes=100, fan_in=4, narrow_ms=10)


def file(name: str, from_ms: int, last_ms: int, size: int = 100, store: str | None = "s", entry: int = 0) -> DataFile:
    return DataFile(name, size, size, store, from_ms, last_ms, entry, 0)


def paths(groups: list[list[DataFile]]) -> list[set[str]]:
    return [{one.path for one in group} for group in groups]


def test_new_files_of_a_store_are_sorted_together_up_to_the_limit() -> None:
    new = [file(f"part-{number}", 0, 1_000, 40, entry=number) for number in range(5)]
    other = file("part-other", 0, 1_000, 40, "t")
    assert paths(rewrite_groups([*new, other], LIMITS)) == [
        {"part-0", "part-1"}, {"part-2", "part-3"}, {"part-4"}, {"part-other"},
    ]  # fmt: skip


def test_a_new_file_larger_than_the_limit_is_sorted_alone() -> None:
    new = [file("part-1", 0, 1_000, 500, entry=1), file("part-2", 0, 1_000, 10, entry=2)]
    assert paths(rewrite_groups(new, LIMITS)) == [{"part-1"}, {"part-2"}]


def test_sorted_files_are_left_alone_until_too_many_overlap() -> None:
    files = [file(f"sorted-{number}", number * 100, 1_000 + number * 100) for number in range(4)]
    assert rewrite_groups(files[:3], LIMITS) == []
    assert paths(rewrite_groups(files, LIMITS)) == [{one.path for one in files}]
    apart = [file(f"sorted-{number}", number * 1_000, number * 1_000 + 999) for number in range(50)]
    assert rewrite_groups(apart, LIMITS) == []


def test_files_of_other_stores_or_densities_are_not_merged() -> None:
    files = [file(f"sorted-{number}", 0, 1_000) for number in range(3)]
    assert rewrite_groups([*files, file("sorted-t", 0, 1_000, store="t")], LIMITS) == []
    assert rewrite_groups([*files, file("sorted-dense", 400, 410)], LIMITS) == []


def test_large_files_that_are_due_at_once_are_not_merged_again_and_again() -> None:
    assert rewrite_groups([file(f"sorted-{number}", 7, 7) for number in range(20)], LIMITS) == []
    assert rewrite_groups([file(f"sorted-{number}", 7, 7, 1) for number in range(4)], LIMITS)


def test_a_file_of_unplaced_takers_alone_is_planned_like_others() -> None:
    unplaced = [DataFile(f"sorted-{number}", 1, 1, "s", None, None, 5, 1) for number in range(4)]
    assert len(rewrite_groups(unplaced, LIMITS)) == 1


def test_hourly_compaction_rewrites_few_rows_and_leaves_few_files_for_a_window() -> None:
    """40 days of appends of 30 MiB an hour that are due within 40 days."""
    limits = RewriteLimits()
    chance = Random(1)
    files: list[DataFile] = []
    appended = rewritten = number = 0
    for hour in range(24 * 40):
        now_ms = hour * 3_600_000
        files = [one for one in files if (one.last_ms or 0) > now_ms]
        size = int(30 * MIB * chance.uniform(0.5, 2))
        files.append(file(f"part-{hour}", now_ms, now_ms + 40 * DAY_MS, size, entry=hour))
        appended += size
        while groups := rewrite_groups(files, limits):
            for group in groups:
                files = [one for one in files if one not in group]
                total = sum(one.size_bytes for one in group)
                rewritten += total
                low, high = min(one.from_ms or 0 for one in group), max(one.last_ms or 0 for one in group)
                pieces = -(-total // limits.file_bytes)
                for piece in range(pieces):
                    bounds = [low + (high - low) * at // pieces for at in (piece, piece + 1)]
                    number += 1
                    files.append(file(f"sorted-{number}", bounds[0], bounds[1] - 1, total // pieces, entry=hour))
    depths = [
        sum((one.from_ms or 0) <= at <= (one.last_ms or 0) for one in files)
        for at in range(now_ms, now_ms + 40 * DAY_MS, DAY_MS // 2)
    ]
    assert rewritten < 3 * appended, "sorted once, and merged once or twice"
    assert max(depths) < 3 * limits.fan_in
