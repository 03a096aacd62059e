"""The system calls of a Disk on a simulated machine, which can crash between any two calls or halfway through one."""

import errno
import mmap
import os
from collections import Counter
from random import Random

from latermq.store.files.library_folder import LibraryFolder
from latermq.store.files.mapped_file import PAGE_BYTES
from latermq.store.files.simulated_files import Folder, Inode, Names, Node, Tree, parent


class SimulatedCrash(BaseException):
    """The process has crashed here: nothing that it still does has an effect. Only tests may catch this."""


def _failure(number: int, path: str = "") -> OSError:
    return OSError(number, os.strerror(number), path or None)


class SimulatedCalls:
    """Implements `Calls`. Calls that change something are counted, and any of them may be the last."""

    def __init__(self, capacity_bytes: int, names: Names | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.names = names or Names()
        self.used_bytes = sum(node.allocated for node in self.names.tree.values() if isinstance(node, Inode))
        self.can_allocate = True
        self.can_punch = True
        self.copies_on_write = False  # whether overwriting data takes new space
        self.made: list[tuple[str, str]] | None = None  # name and path of each call, if a test wants to see them
        self.after_crash: SimulatedCalls | None = None  # the machine's state after the process crashed
        self._calls_left: int | None = None  # number of calls before the last one
        self._crashes_halfway = False
        self.max_descriptors: int | None = None  # per process; a map takes one, as in Python
        self._open: dict[int, tuple[str, Inode]] = {}
        self._maps: Counter[int] = Counter()  # number of mappings of each piece of memory
        self._next_fd = 3
        self._locks: set[str] = set()

    # Crashes

    def crash_after(self, calls: int | None, *, halfway: bool) -> None:
        """Allow this many more calls. `halfway`: perform half of the next one if it can be partial."""
        self._calls_left, self._crashes_halfway = calls, halfway

    def _is_last(self, call: str, path: str) -> bool:
        """Count a call and return whether it is no longer performed."""
        if self.after_crash is not None:
            raise SimulatedCrash
        if self.made is not None:
            self.made.append((call, path))
        if self._calls_left is None:
            return False
        self._calls_left -= 1
        return self._calls_left < 0

    def _make(self, call: str, path: str) -> None:
        """Begin a call that is performed completely or not at all."""
        if self._is_last(call, path):
            self._crash()

    def _share(self, call: str, path: str, size: int) -> int:
        """Begin a call that may be performed in part, and return how much of it. `_finish` must follow."""
        if not self._is_last(call, path):
            return size
        return size // 2 if self._crashes_halfway else 0

    def _finish(self) -> None:
        if self._calls_left is not None and self._calls_left < 0:
            self._crash()

    def _crash(self) -> None:
        self.after_crash = self.after_process_crash()
        raise SimulatedCrash

    def after_process_crash(self) -> "SimulatedCalls":
        """Return the machine that the next process finds: everything written is there, synced or not."""

        def copied(node: Node) -> Node:
            return node.copy(node.pages(), node.size) if isinstance(node, Inode) else _copied_folder(node)

        return self.after_crash or self._with(self.names.copy(copied))

    def after_machine_crash(self, chance: Random) -> "SimulatedCalls":
        """Return the machine after a power failure."""
        tree: Tree = {}
        for path, node in (self.after_crash or self).names.survivors(chance).items():
            tree[path] = node.survivor(chance) if isinstance(node, Inode) else _copied_folder(node)
        for node in tree.values():
            if isinstance(node, Folder) and node.library is not None:
                node.library.cut_unsynced(chance)
        return self._with(Names(tree))

    def _with(self, names: Names) -> "SimulatedCalls":
        other = SimulatedCalls(self.capacity_bytes, names)
        other.can_allocate, other.can_punch = self.can_allocate, self.can_punch
        other.copies_on_write = self.copies_on_write
        return other

    # Files

    @property
    def descriptors(self) -> int:
        """The number of descriptors that the process holds."""
        return len(self._open) + self._maps.total()

    def _need_descriptor(self, path: str) -> None:
        if self.max_descriptors is not None and self.descriptors >= self.max_descriptors:
            raise _failure(errno.EMFILE, path)

    def open(self, path: str, *, create: bool = False, empty: bool = False, read_only: bool = False) -> int:
        node = self.names.tree.get(path)
        if isinstance(node, Folder):
            raise _failure(errno.EISDIR, path)
        self._need_descriptor(path)
        if node is None:
            if not create:
                raise _failure(errno.ENOENT, path)
            self._need_folder(parent(path))
            self._make("create", path)
            node = Inode()
            self.names.change("", path, node)
        elif empty and node.size:
            self._make("truncate", path)
            self._cut(node, 0)
        fd, self._next_fd = self._next_fd, self._next_fd + 1
        self._open[fd] = (path, node)
        return fd

    def close(self, fd: int) -> None:
        path, _ = self._open.pop(fd)
        self._locks.discard(f"{fd} {path}")

    def size(self, fd: int) -> int:
        return self._open[fd][1].size

    def truncate(self, fd: int, size: int) -> None:
        path, inode = self._open[fd]
        self._make("truncate", path)
        self._cut(inode, size)

    def _cut(self, inode: Inode, size: int) -> None:
        before = inode.allocated
        inode.cut(size)
        self.used_bytes += inode.allocated - before

    def _reserve(self, inode: Inode, upto: int) -> None:
        more = max(0, upto - inode.allocated)
        if self.used_bytes + more > self.capacity_bytes:
            raise _failure(errno.ENOSPC)
        self.used_bytes += more
        inode.allocated += more

    def allocate(self, fd: int, start: int, size: int) -> None:
        path, inode = self._open[fd]
        if not self.can_allocate:
            raise _failure(errno.EOPNOTSUPP)
        share = self._share("allocate", path, size)
        self._reserve(inode, start + share)
        self._finish()

    def punch(self, fd: int, start: int, size: int) -> None:
        path, inode = self._open[fd]
        if not self.can_punch:
            raise _failure(errno.EOPNOTSUPP)
        share = self._share("punch", path, size)
        inode.clear(start, start + share)
        if start + share >= inode.size:
            kept = min(inode.allocated, -(-start // PAGE_BYTES) * PAGE_BYTES)
            self.used_bytes += kept - inode.allocated
            inode.allocated = kept
        self._finish()

    def next_data(self, fd: int, at: int) -> int | None:
        return self._open[fd][1].next_page(at, is_used=True)

    def next_hole(self, fd: int, at: int) -> int:
        inode = self._open[fd][1]
        found = inode.next_page(at, is_used=False)
        return inode.size if found is None else found

    def read(self, fd: int, size: int, at: int) -> bytes:
        inode = self._open[fd][1]
        size = max(0, min(size, inode.size - at))
        return bytes(inode.data[at : at + size]).ljust(size, b"\0")

    def write(self, fd: int, data: bytes | memoryview, at: int) -> int:
        path, inode = self._open[fd]
        share = self._share("write", path, len(data))
        if self.copies_on_write and self.used_bytes + share > self.capacity_bytes:
            raise _failure(errno.ENOSPC)
        self._reserve(inode, at + share)
        inode.put(data[:share], at)
        self._finish()
        return share

    def sync(self, fd: int) -> None:
        path, inode = self._open[fd]
        self._make("sync", path)
        inode.sync()

    def will_need(self, fd: int, at: int, size: int) -> None:
        """Do nothing: the data is already in memory."""

    def map(self, fd: int, size: int) -> mmap.mmap:
        path, inode = self._open[fd]
        self._need_descriptor(path)
        mapped = inode.mapped()
        self._maps[id(mapped)] += 1
        return mapped

    def unmap(self, mapped: mmap.mmap) -> None:
        """Unmap the file. Its content stays."""
        self._maps[id(mapped)] -= 1

    def forget_pages(self, mapped: mmap.mmap, at: int, size: int) -> None:
        """Do nothing: the content is only in this memory."""

    # Names

    def _need(self, path: str) -> Node:
        node = self.names.tree.get(path)
        if node is None:
            raise _failure(errno.ENOENT, path)
        return node

    def _need_folder(self, path: str) -> None:
        if not isinstance(self._need(path), Folder):
            raise _failure(errno.ENOTDIR, path)

    def file_size(self, path: str) -> int:
        node = self._need(path)
        return node.size if isinstance(node, Inode) else PAGE_BYTES

    def is_folder(self, path: str) -> bool:
        return isinstance(self.names.tree.get(path), Folder)

    def is_link(self, path: str) -> bool:
        return False  # there are no links here

    def list_folder(self, path: str) -> list[str]:
        self._need_folder(path)
        start = len(path) + 1 if path else 0
        return [name[start:] for name in self.names.tree if name and parent(name) == path]

    def make_folder(self, path: str) -> None:
        self._need_folder(parent(path))
        if path in self.names.tree:
            raise _failure(errno.EEXIST, path)
        self._make("make folder", path)
        self.names.change("", path, Folder())

    def remove_folder(self, path: str) -> None:
        self._need_folder(path)
        if self.list_folder(path):
            raise _failure(errno.ENOTEMPTY, path)
        self._make("remove folder", path)
        self.names.change(path, "")

    def unlink(self, path: str) -> None:
        node = self._need(path)
        self._make("unlink", path)
        self.names.change(path, "")
        if isinstance(node, Inode):
            self.used_bytes -= node.allocated

    def rename(self, path: str, new_path: str) -> None:
        self._need(path)
        self._need_folder(parent(new_path))
        if self.is_folder(new_path) and self.list_folder(new_path):
            raise _failure(errno.ENOTEMPTY, new_path)
        self._make("rename", path)
        replaced = self.names.tree.get(new_path)
        self.names.change(path, new_path)
        if isinstance(replaced, Inode):
            self.used_bytes -= replaced.allocated

    def sync_folder(self, path: str) -> None:
        self._need_folder(path)
        self._make("sync folder", path)
        self.names.sync(path)

    def lock(self, path: str) -> int:
        if any(lock.partition(" ")[2] == path for lock in self._locks):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        fd = self.open(path, create=True)
        self._locks.add(f"{fd} {path}")
        return fd

    def used_ratio(self) -> float:
        return self.used_bytes / self.capacity_bytes

    # Libraries

    def library(self, path: str) -> LibraryFolder:
        """Return the library's files in this folder."""
        folder = self._need(path)
        assert isinstance(folder, Folder)
        folder.library = folder.library or LibraryFolder()
        return folder.library


def _copied_folder(folder: Folder) -> Folder:
    return Folder(folder.library and folder.library.copy())
