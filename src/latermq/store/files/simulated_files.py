"""Files and folders of a simulated machine, and what remains of them after a crash of the process or the machine.

After a crash of the process everything that it wrote remains. After a crash of the machine all synced data remains. Of
the rest, each page and each file size survives or not, at random. The changes of a folder survive up to a random point
in their order.
"""

import mmap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np

from latermq.store.files.library_folder import LibraryFolder
from latermq.store.files.mapped_file import PAGE_BYTES

Pages = dict[int, bytes]  # by number; pages that are not listed are zeros
_STRAY_BYTES = 16 * PAGE_BYTES  # how far after its reserved space a file is searched for stray writes


class Inode:
    """A file without its name.

    Large files are nearly empty. Their map uses huge pages, and unused ones read as zeros without taking memory.
    """

    def __init__(self) -> None:
        self.size = 0
        self.allocated = 0  # bytes from the start that have disk space
        self.data: mmap.mmap | bytearray = bytearray()  # not longer than the file; missing bytes are zeros
        self.synced: Pages = {}
        self.synced_size = 0

    def mapped(self) -> mmap.mmap:
        """Return the content as a map, the same one for all callers."""
        if not isinstance(self.data, mmap.mmap) or len(self.data) < self.size:
            grown = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            grown.madvise(mmap.MADV_HUGEPAGE)
            for page, data in self.pages().items():
                grown[page * PAGE_BYTES : page * PAGE_BYTES + len(data)] = data
            self.data = grown
        return self.data

    def pages(self) -> Pages:
        """Return the nonzero pages."""
        end = min(self.allocated, self.size, len(self.data))
        whole = end // PAGE_BYTES
        words = np.frombuffer(self.data, np.uint64, whole * PAGE_BYTES // 8).reshape(whole, PAGE_BYTES // 8)
        used = np.bitwise_or.reduce(words, axis=1).nonzero()[0].tolist()
        found = {page: bytes(self.data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]) for page in used}
        if (rest := bytes(self.data[whole * PAGE_BYTES : end])).strip(b"\0"):
            found[whole] = rest
        stray = bytes(self.data[end : min(end + _STRAY_BYTES, self.size)])
        assert not stray.strip(b"\0"), (
            f"written at {end + len(stray) - len(stray.lstrip(bytes(1)))} without reserved space"
        )
        return found

    def next_page(self, at: int, *, is_used: bool) -> int | None:
        """Return the first position from `at` on in a used or unused page, or None."""
        used = np.zeros(-(-self.size // PAGE_BYTES), bool)
        used[list(self.pages())] = True
        found = np.flatnonzero(used[at // PAGE_BYTES :] == is_used) if at < self.size else used[:0]
        return max(at, int(found[0] + at // PAGE_BYTES) * PAGE_BYTES) if len(found) else None

    def put(self, data: bytes | memoryview, at: int) -> None:
        end = at + len(data)
        if len(self.data) < end and isinstance(self.data, bytearray):
            self.data.extend(bytes(end - len(self.data)))
        self.data[at:end] = bytes(data)
        self.size = max(self.size, end)

    def clear(self, start: int, end: int) -> None:
        """Set these bytes to zero."""
        end = min(end, len(self.data))
        if start >= end:
            return
        if isinstance(self.data, bytearray):
            self.data[start:end] = bytes(end - start)
            return
        page_start, page_end = -(-start // PAGE_BYTES) * PAGE_BYTES, end // PAGE_BYTES * PAGE_BYTES
        if end == len(self.data):
            page_end = -(-end // PAGE_BYTES) * PAGE_BYTES
        if page_start < page_end:
            self.data.madvise(mmap.MADV_DONTNEED, page_start, page_end - page_start)  # anonymous, so it reads as zeros
            self.data[start:page_start] = bytes(page_start - start)
            start = page_end
        if start < end:
            self.data[start:end] = bytes(end - start)

    def cut(self, size: int) -> None:
        """Change the size."""
        if size < self.size:
            self.clear(size, self.size)
            if isinstance(self.data, bytearray):
                del self.data[size:]
            self.allocated = min(self.allocated, -(-size // PAGE_BYTES) * PAGE_BYTES)
        self.size = size

    def sync(self) -> None:
        self.synced, self.synced_size = self.pages(), self.size

    def copy(self, pages: Pages, size: int) -> "Inode":
        """Return another inode with this content."""
        other = Inode()
        other.size, other.allocated = size, min(self.allocated, -(-size // PAGE_BYTES) * PAGE_BYTES)
        other.synced, other.synced_size = self.synced, self.synced_size
        if isinstance(self.data, mmap.mmap) and size:
            other.mapped()
        for page, data in pages.items():
            if page * PAGE_BYTES < size:
                other.put(data[: size - page * PAGE_BYTES], page * PAGE_BYTES)
        return other

    def survivor(self, chance: Random) -> "Inode":
        """Return what remains of the file after a crash of the machine."""
        old, new = self.synced, self.pages()
        size = self.size if self.size == self.synced_size or chance.random() < 0.5 else self.synced_size
        pages = {
            page: content[page]
            for page in sorted(old.keys() | new.keys())
            if page in (content := new if chance.random() < 0.5 else old)
        }
        other = self.copy(pages, size)
        if pages:  # freed space is allocated again
            other.allocated = max(other.allocated, (max(pages) + 1) * PAGE_BYTES)
        other.sync()
        return other


@dataclass(eq=False)
class Folder:
    """A folder, with a library's files if it belongs to one."""

    library: LibraryFolder | None = None


Node = Inode | Folder
Tree = dict[str, Node]


@dataclass
class Change:
    """A change of the tree: a node gets a new name. Without an old name it is created, without a new one removed."""

    path: str
    new_path: str
    node: Node | None
    is_safe: bool = False

    @property
    def folders(self) -> list[str]:
        """The folders whose names change."""
        return [parent(path) for path in (self.path, self.new_path) if path]

    def make(self, tree: Tree) -> None:
        """Apply the change if the tree has the folders for it."""
        if not all(folder in tree for folder in self.folders):
            return
        if self.new_path:
            for name in [name for name in tree if is_inside(name, self.new_path)]:
                del tree[name]
        for name in [name for name in tree if self.path and is_inside(name, self.path)]:
            node = tree.pop(name)
            if self.new_path:
                tree[self.new_path + name[len(self.path) :]] = node
        if self.node is not None:
            tree[self.new_path] = self.node


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def is_inside(path: str, folder: str) -> bool:
    """Whether this path is the folder or is inside it."""
    return path.startswith(folder) and path[len(folder) :][:1] in ("", "/")


class Names:
    """The tree of folders and files, and the changes that a crash of the machine may undo."""

    def __init__(self, tree: Tree | None = None) -> None:
        self.tree: Tree = tree if tree is not None else {"": Folder()}
        self._safe: Tree = dict(self.tree)
        self._changes: list[Change] = []  # changes since `_safe`, in order

    def change(self, path: str, new_path: str, node: Node | None = None) -> None:
        change = Change(path, new_path, node)
        change.make(self.tree)
        self._changes.append(change)

    def sync(self, folder: str) -> None:
        """Make the changes in this folder durable."""
        for change in self._changes:
            change.is_safe = change.is_safe or folder in change.folders
        while self._changes and self._changes[0].is_safe:
            self._changes.pop(0).make(self._safe)

    def survivors(self, chance: Random) -> Tree:
        """Return the tree after a crash of the machine."""
        waiting = Counter(folder for change in self._changes if not change.is_safe for folder in change.folders)
        left = {
            folder: count if chance.random() < 0.5 else chance.randint(0, count) for folder, count in waiting.items()
        }
        tree = dict(self._safe)
        for change in self._changes:
            if not change.is_safe:
                survives = all(left[folder] > 0 for folder in change.folders)
                for folder in change.folders:
                    left[folder] = left[folder] - 1 if survives else 0
                if not survives:
                    continue
            change.make(tree)
        return tree

    def copy(self, of: Callable[[Node], Node]) -> "Names":
        """Return the same tree with copies of its nodes."""
        copies: dict[int, Node] = {}

        def copied(node: Node) -> Node:
            if id(node) not in copies:
                copies[id(node)] = of(node)
            return copies[id(node)]

        other = Names({path: copied(node) for path, node in self.tree.items()})
        other._safe = {path: copied(node) for path, node in self._safe.items()}
        other._changes = [
            Change(one.path, one.new_path, copied(one.node) if one.node else None, one.is_safe) for one in self._changes
        ]
        return other
