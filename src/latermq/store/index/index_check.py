"""Checks that the key index is complete. Nothing may be missing, because it is the directory of waiting timers.

A checkpoint lists the files and the end of the newest one. The log shows the rest: if a record before a file or between
two files has keys, these keys are missing from the index. Some entries of each file are sampled. That finds zeroed,
overwritten or torn data, but not a single flipped bit.
"""

from collections.abc import Sequence
from itertools import pairwise

from latermq.errors import CorruptStore
from latermq.store.commit_log import CommitLog
from latermq.store.dispatch import index_keys
from latermq.store.index.key_index import FOLDER, IndexFile, KeyIndex

READ_AT_ONCE = 256  # records; the first one is nearly always enough


def check_size(index: KeyIndex, known_file_bytes: int) -> None:
    """Reject files created with other settings; `known_file_bytes` is their size if it is known, otherwise 0.

    A single file whose size differs from the others is damaged.
    """
    if not index.misfits or known_file_bytes == index.file_bytes or (not known_file_bytes and index.files):
        return
    name, size = next(iter(index.misfits.items()))
    raise CorruptStore(
        f"{FOLDER}/{name} has {size} bytes, but the configuration says {index.file_bytes}",
        hint="Set store.index_slots and store.index_entries as they were when this store was created, or remove index/",
    )


def find_damage(
    index: KeyIndex, log: CommitLog, names: Sequence[str] | None, mark: tuple[str, int], log_end: int
) -> str:
    """Return what is lost of the index that a checkpoint covers, or an empty string.

    `names` are the checkpoint's files, or None if it is too old to list them. `mark` is the newest file and its next
    entry.
    """
    newest, next_entry = mark
    files = [file for file in index.files if file.name <= newest]
    if not newest:
        # There were no keys. With an older checkpoint, the index may also be missing without a start having noticed.
        return "" if names is not None else _find_key(log, -1, log_end)
    if index.misfits:
        return f"{next(iter(index.misfits))} is truncated"
    if not files or files[-1].name != newest:
        return f"{newest} is missing"
    uptos = [*(file.max_entries for file in files[:-1]), next_entry]
    for file, upto in zip(files, uptos, strict=True):
        if not file.is_sound(upto):
            return f"{file.name} is damaged"
    found = {file.name for file in files}
    missing = [name for name in names or () if name not in found]
    if missing and missing != list(names or ())[: len(missing)]:
        return f"{missing[-1]} is missing"
    if names is not None and not missing:
        return ""
    # Files missing at the front were removed together with their part of the log, unless a record still in the log has
    # a key.
    return _find_gap(files if names is None else files[:1], log, log_end)


def find_foreign_damage(index: KeyIndex, log: CommitLog, log_end: int) -> str:
    """Do the same if only RocketMQ has written: return what is in the log but not in the index."""
    if index.misfits:
        return f"{next(iter(index.misfits))} is truncated"
    files = index.files
    for file in files:
        if not file.is_sound(file.next_entry) or (file is not files[-1] and not file.is_full):
            return f"{file.name} is damaged"
    after = files[-1].last_offset if files else -1
    return _find_gap(files, log, log_end) or _find_key(log, after, log_end)


def _find_gap(files: Sequence[IndexFile], log: CommitLog, log_end: int) -> str:
    """Return what is missing before the first of these files or between two of them."""
    if not files:
        return ""
    starts = [file.first_offset if file.next_entry > 1 else log_end for file in files]
    lost = _find_key(log, -1, starts[0])
    for (before, _), (_, start) in pairwise(zip(files, starts, strict=True)):
        lost = lost or _find_key(log, before.last_offset, start)
    return lost


def _find_key(log: CommitLog, after: int, until: int) -> str:
    """Report the first record after `after` and before `until` that has a key."""
    for batch in log.scan(max(after, log.start), until, READ_AT_ONCE):
        topics = [name.decode() for name in batch.topics]
        offsets = index_keys(topics, batch.properties, batch.offsets, batch.store_timestamps_ms).offsets
        later = offsets[offsets > after]
        if len(later):
            return f"keys of the record at {int(later[0])} are missing"
    return ""
