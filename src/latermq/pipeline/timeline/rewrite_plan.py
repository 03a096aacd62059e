"""The plan of a compaction: which files to rewrite together, from their statistics alone.

New files are sorted in small groups, each of which becomes a *run*: files that do not overlap in due time. A read of a
span opens at least one file of every run, so runs may not become many. Files are merged where more than `fan_in` of
them overlap that have a similar density, the bytes per millisecond of due time. The result is that many times denser,
and takes part in the next merge only together with as many others of its kind. So each row is rewritten once for every
factor of `fan_in` by which the table grows, however often it is compacted. Every group is rewritten by itself.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from latermq.pipeline.timeline.data_files import DataFile


@dataclass(frozen=True)
class RewriteLimits:
    """The sizes of files and groups."""

    # Of new files that are sorted together. If what they hold exceeds the next limit, they become several runs.
    sort_bytes: int = 256 << 20
    held_bytes: int = 320 << 20  # of uncompressed rows that are sorted in memory at once
    file_bytes: int = 128 << 20  # about the size of the written files
    fan_in: int = 24  # overlapping files of similar density, which are then merged
    # A file that spans no more than this is read whole by most windows. Narrower files would not save anything.
    narrow_ms: int = 60_000


DEFAULT_LIMITS = RewriteLimits()
# Files are of similar density if they are in the same power of this.
_DENSITY_STEP = 8


def rewrite_groups(files: Iterable[DataFile], limits: RewriteLimits = DEFAULT_LIMITS) -> list[list[DataFile]]:
    """The groups of files to rewrite, each by itself and in any order. Empty if the table is in order."""
    known = list(files)
    return [*groups_to_sort(known, limits), *_groups_to_merge(known, limits)]


def groups_to_sort(files: Sequence[DataFile], limits: RewriteLimits) -> Iterator[list[DataFile]]:
    """New files of the same store, entry by entry, up to the size that is sorted together."""
    new = sorted(
        (file for file in files if not file.is_sorted), key=lambda file: (file.store_id or "", file.last_entry or 0)
    )
    group: list[DataFile] = []
    for file in new:
        if group and (
            file.store_id != group[0].store_id
            or sum(one.size_bytes for one in group) + file.size_bytes > limits.sort_bytes
        ):
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def _groups_to_merge(files: Sequence[DataFile], limits: RewriteLimits) -> Iterator[list[DataFile]]:
    classes = defaultdict(list)
    for file in files:
        if file.is_sorted and _is_worth_merging(file, limits):
            classes[file.store_id, _density_class(file)].append(file)
    for candidates in classes.values():
        while len(group := _deepest(candidates, limits.fan_in)) >= limits.fan_in:
            yield group
            chosen = {file.path for file in group}
            candidates = [file for file in candidates if file.path not in chosen]


def _is_worth_merging(file: DataFile, limits: RewriteLimits) -> bool:
    """Not a large file of a short span: however many such files there are, a merge would give as many again."""
    first, last = _span(file)
    return last - first > limits.narrow_ms or file.size_bytes * limits.fan_in <= limits.file_bytes


def _density_class(file: DataFile) -> int:
    first, last = _span(file)
    return int(math.log(max(1.0, file.size_bytes * 1_000 / (last - first + 1)), _DENSITY_STEP))


def _span(file: DataFile) -> tuple[int, int]:
    """The first and the last due time; (0, 0) if the file holds unplaced takers only."""
    return (0, 0) if file.from_ms is None or file.last_ms is None else (file.from_ms, file.last_ms)


def _deepest(files: Sequence[DataFile], limit: int) -> list[DataFile]:
    """Files that contain the due time at which most of them overlap, the narrowest first, at most `limit`."""
    steps = sorted([(_span(file)[0], 0, 1) for file in files] + [(_span(file)[1], 1, -1) for file in files])
    depth = deepest = at_ms = 0
    for due_ms, _, step in steps:
        depth += step
        if depth > deepest:
            deepest, at_ms = depth, due_ms
    found = [file for file in files if _span(file)[0] <= at_ms <= _span(file)[1]]
    return sorted(found, key=lambda file: (_span(file)[1] - _span(file)[0], file.path))[:limit]
