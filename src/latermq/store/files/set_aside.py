"""Small files that a start reads. One that cannot be parsed is set aside under another name, and the start continues.

No data is lost: the original file stays unchanged next to its replacement. If there is a `.bak` file, as both RocketMQ
and LaterMQ write, it replaces the parts that cannot be parsed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from latermq.store.files.disk import Disk

BACKUP = ".bak"
UNREADABLE = ".unreadable-"
T = TypeVar("T")


class UnparsableFileError(Exception):
    """Nothing in the file can be used."""


@dataclass(frozen=True)
class Trouble:
    """A file that could not be parsed completely, or is missing although it has a backup."""

    path: str
    reason: str
    kept_as: str = ""  # the path of the unchanged original
    backup: str = ""  # the backup that replaced the file or parts of it
    lost: tuple[str, ...] = ()  # entries that are in neither file
    is_lost: bool = False  # nothing of its content is known

    @property
    def advice(self) -> str:
        """What an operator can do about it."""
        if not self.kept_as:
            return f"{self.backup} is used instead: check that it has the expected content"
        return f"Compare {self.kept_as} with {self.path}, and repair {self.path} while the broker is stopped"


@dataclass
class Parsed(Generic[T]):
    """The content of a file, and the entries that are lost or only partially readable, with the reasons."""

    value: T
    lost: dict[Any, str] = field(default_factory=dict)
    repaired: dict[Any, str] = field(default_factory=dict)


def load_file(
    disk: Disk,
    path: str,
    parse: Callable[[bytes], Parsed[T]],
    entries: Callable[[T], dict[Any, Any]],
    empty: Callable[[], T],
) -> tuple[T, Trouble | None]:
    """Load a file, and return its content and what is wrong with it.

    `parse` raises UnparsableFileError if it can use nothing; `entries` returns the parts of a value.
    """
    data = disk.read(path)
    if not data:
        older = _parse(disk.read(path + BACKUP), parse)
        if older is None:
            return empty(), None
        return older.value, Trouble(path, "it is missing", backup=path + BACKUP, lost=tuple(map(str, older.lost)))
    try:
        parsed = parse(data)
    except UnparsableFileError as error:
        kept_as = _set_aside(disk, path, data)
        older = _parse(disk.read(path + BACKUP), parse)
        if older is None:
            return empty(), Trouble(path, str(error), kept_as, is_lost=True)
        return older.value, Trouble(path, str(error), kept_as, backup=path + BACKUP, lost=tuple(map(str, older.lost)))
    troubles = parsed.lost | parsed.repaired
    if not troubles:
        return parsed.value, None
    kept_as = _set_aside(disk, path, data)
    older = _parse(disk.read(path + BACKUP), parse)
    found = {name: entries(older.value)[name] for name in parsed.lost if name in entries(older.value)} if older else {}
    entries(parsed.value).update(found)
    name, reason = next(iter(troubles.items()))
    trouble = Trouble(
        path,
        f"{len(troubles)} of its entries cannot be parsed; the first is {str(name)[:100]!r}: {reason}",
        kept_as,
        backup=path + BACKUP if found else "",
        lost=tuple(str(name) for name in parsed.lost if name not in found),
    )
    return parsed.value, trouble


def _parse(data: bytes | None, parse: Callable[[bytes], Parsed[T]]) -> Parsed[T] | None:
    try:
        return parse(data) if data else None
    except UnparsableFileError:
        return None


def _set_aside(disk: Disk, path: str, data: bytes) -> str:
    """Keep the content of a file under a name that is never overwritten. Repeated starts keep it only once."""
    folder, _, name = path.rpartition("/")
    used = {one for one in disk.list_names(folder) if one.startswith(name + UNREADABLE)}
    number = 1
    while f"{name}{UNREADABLE}{number}" in used:
        kept = f"{path}{UNREADABLE}{number}"
        if disk.read(kept) == data:
            return kept
        number += 1
    kept = f"{path}{UNREADABLE}{number}"
    disk.replace(kept, data)
    return kept
