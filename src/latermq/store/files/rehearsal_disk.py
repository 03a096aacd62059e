"""A Disk on which a start can be rehearsed: it shows a real directory, and changes nothing there."""

import os
import shutil
import tempfile
from pathlib import Path

from latermq.errors import StoreError
from latermq.store.files.disk import GOING_PREFIX, CallDisk
from latermq.store.files.paths import check_inside
from latermq.store.files.rehearsal_calls import RehearsalCalls

_IMMUTABLE = ".sst"  # RocksDB never changes such a file: a second name is as good as a copy
# Should this process be killed, the next start of a broker removes the copies: second names would keep files for ever.
_COPY_PREFIX = f"{GOING_PREFIX}doctor-"


class RehearsalDisk(CallDisk):
    """Used in `with`, at whose end the copies are removed that libraries worked on."""

    def __init__(self, root: Path) -> None:
        super().__init__(RehearsalCalls(root), str(root))
        self._root = root
        self._copies: list[Path] = []

    def library_folder(self, name: str) -> Path:
        """A copy of the folder, beside the store where there is room for names, else where there is room at all."""
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
            raise StoreError(f"cannot copy {name} to look at it: {error.strerror}", hint="Free disk space") from None
        return copy

    def _clear_away(self) -> None:
        """That is left to a start."""

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
