"""A Disk for the rehearsal of a start: it shows a real directory and changes nothing in it."""

import os
import shutil
import tempfile
from pathlib import Path

from latermq.errors import StoreError
from latermq.store.files.disk import REMOVAL_PREFIX, CallDisk
from latermq.store.files.paths import check_inside
from latermq.store.files.rehearsal_calls import RehearsalCalls

_IMMUTABLE = ".sst"  # RocksDB never changes such a file, so a hard link is as good as a copy
# If this process is killed, the next start of a broker removes the copies. Otherwise the hard links would keep the
# files forever.
_COPY_PREFIX = f"{REMOVAL_PREFIX}doctor-"


class RehearsalDisk(CallDisk):
    """A context manager: at its end it removes the copies that libraries worked on."""

    def __init__(self, root: Path) -> None:
        super().__init__(RehearsalCalls(root), str(root))
        self._root = root
        self._copies: list[Path] = []

    def library_folder(self, name: str) -> Path:
        """Return a copy of the folder for a library.

        The copy is in the store's directory if possible, because hard links need space only for their names. Otherwise
        it is in a temporary directory.
        """
        real = self._root / check_inside(name)
        try:
            copy = Path(tempfile.mkdtemp(prefix=_COPY_PREFIX, dir=self._root))
        except OSError:
            copy = Path(tempfile.mkdtemp(prefix="latermq-doctor-"))
        self._copies.append(copy)
        try:
            for path in sorted(real.rglob("*")) if real.is_dir() else ():
                target = copy / path.relative_to(real)
                if path.is_dir():
                    target.mkdir()
                else:
                    _link_or_copy(path, target)
        except OSError as error:
            raise StoreError(f"cannot copy {name} to inspect it: {error.strerror}", hint="Free disk space") from None
        return copy

    def _remove_leftovers(self) -> None:
        """Do nothing: a real start does this."""

    def __enter__(self) -> "RehearsalDisk":
        return self

    def __exit__(self, *_: object) -> None:
        for copy in self._copies:
            shutil.rmtree(copy, ignore_errors=True)


def _link_or_copy(path: Path, target: Path) -> None:
    if path.suffix == _IMMUTABLE:
        try:
            os.link(path, target)
        except OSError:
            shutil.copyfile(path, target)
    else:
        shutil.copyfile(path, target)
