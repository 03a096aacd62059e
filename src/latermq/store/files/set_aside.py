"""Small files that a start reads: what it does not understand is set aside under another name, and it goes on.

Nothing is lost by that: the file stays as it was, beside the one that takes its place. Where there is a `.bak` beside
it, as RocketMQ leaves one, and LaterMQ too, that is used for what is not understood.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from latermq.store.files.disk import Disk

BACKUP = ".bak"
UNREADABLE = ".unreadable-"
T = TypeVar("T")


class NotUnderstoodError(Exception):
    """Nothing of the file is of any use."""


@dataclass(frozen=True)
class Trouble:
    """A file that was not understood as a whole, or is missing though there is an older state of it."""

    path: str
    reason: str
    kept_as: str = ""  # where it lies now, as it was
    backup: str = ""  # which file stood in for it, or for parts of it
    lost: tuple[str, ...] = ()  # entries that no file tells
    is_lost: bool = False  # nothing is known of what was in it

    @property
    def advice(self) -> str:
        """What an operator may do about it."""
        if not self.kept_as:
            return f"{self.backup} is used: compare it with what you expect"
        return f"Compare {self.kept_as} with {self.path}, and repair that while the broker is stopped"


@dataclass
class Parsed(Generic[T]):
    """What a file says, and of which of its entries it does not say it, or only in part, and why."""

    value: T
    lost: dict[Any, str] = field(default_factory=dict)
    mended: dict[Any, str] = field(default_factory=dict)


def load_file(
    disk: Disk,
    path: str,
    parse: Callable[[bytes], Parsed[T]],
    entries: Callable[[T], dict[Any, Any]],
    empty: Callable[[], T],
) -> tuple[T, Trouble | None]:
    """What a file says, and what is wrong with it.

    `parse` raises NotUnderstoodError where it understands nothing; `entries` are the parts of a value.
    """
    data = disk.read(path)
    if not data:
        older = _parse(disk.read(path + BACKUP), parse)
        if older is None:
            return empty(), None
        return older.value, Trouble(path, "it is missing", backup=path + BACKUP, lost=tuple(map(str, older.lost)))
    try:
        parsed = parse(data)
    except NotUnderstoodError as error:
        kept_as = _set_aside(disk, path, data)
        older = _parse(disk.read(path + BACKUP), parse)
        if older is None:
            return empty(), Trouble(path, str(error), kept_as, is_lost=True)
        return older.value, Trouble(path, str(error), kept_as, backup=path + BACKUP, lost=tuple(map(str, older.lost)))
    troubles = parsed.lost | parsed.mended
    if not troubles:
        return parsed.value, None
    kept_as = _set_aside(disk, path, data)
    older = _parse(disk.read(path + BACKUP), parse)
    found = {name: entries(older.value)[name] for name in parsed.lost if name in entries(older.value)} if older else {}
    entries(parsed.value).update(found)
    name, reason = next(iter(troubles.items()))
    trouble = Trouble(
        path,
        f"{len(troubles)} of its entries are not understood, the first is {str(name)[:100]!r}: {reason}",
        kept_as,
        backup=path + BACKUP if found else "",
        lost=tuple(str(name) for name in parsed.lost if name not in found),
    )
    return parsed.value, trouble


def _parse(data: bytes | None, parse: Callable[[bytes], Parsed[T]]) -> Parsed[T] | None:
    try:
        return parse(data) if data else None
    except NotUnderstoodError:
        return None


def _set_aside(disk: Disk, path: str, data: bytes) -> str:
    """Keep the content of a file under a name that nothing overwrites; once, however often a start finds it."""
    folder, _, name = path.rpartition("/")
    taken = {one for one in disk.list_names(folder) if one.startswith(name + UNREADABLE)}
    number = 1
    while f"{name}{UNREADABLE}{number}" in taken:
        kept = f"{path}{UNREADABLE}{number}"
        if disk.read(kept) == data:
            return kept
        number += 1
    kept = f"{path}{UNREADABLE}{number}"
    disk.replace(kept, data)
    return kept
