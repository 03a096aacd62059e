"""The name server's key-value table: namespace → key → value, saved as Apache's kvConfig.json if there is a disk."""

import contextlib
from collections.abc import Callable

import msgspec

from latermq.config import NameServerConfig
from latermq.config_json.members import members
from latermq.errors import Busy, InvalidParameter, LaterMQError, QueryNotFound, ServiceUnavailable, StoreError
from latermq.protocol.remoting.frames import UNREADABLE
from latermq.server.namesrv.background_files import BackgroundFile, RunWork, at_once
from latermq.store.files.disk import Disk
from latermq.store.files.set_aside import Parsed, Trouble, UnparsableFileError, load_file

FILE = "kvConfig.json"
ORDER_TOPICS = "ORDER_TOPIC_CONFIG"  # the namespace with the number of queues of each ordered topic per broker

MAX_NAME_CHARS = 255
MAX_WAITING = 10_000  # changes that wait for the disk before they are answered

Table = dict[str, dict[str, str]]


# The field name is part of the file format.
class _File(msgspec.Struct):
    configTable: Table = msgspec.field(default_factory=dict)


class KVConfigs:
    """The table in memory. A change is answered once it is on disk. Without a disk, the table is lost at exit.

    A change is visible at once. If its write fails, the table reverts to the content on disk.
    """

    def __init__(self, bounds: NameServerConfig, disk: Disk | None = None, run_work: RunWork = at_once) -> None:
        self._max_bytes = bounds.max_kv
        self._max_entries = bounds.max_kv_entries
        table: Table = {}
        self.trouble: Trouble | None = None  # set if the file could not be parsed
        if disk is not None:
            table, self.trouble = load_file(disk, FILE, _parse, lambda table: table, dict)
        self._load(table)
        if disk is not None and self.trouble is not None:
            with contextlib.suppress(StoreError):  # the next change retries
                disk.replace(FILE, self._content())
        self._file = BackgroundFile(disk, FILE, self._content, run_work) if disk is not None else None

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def entries(self, namespace: str) -> dict[str, str]:
        """All keys and values of one namespace."""
        entries = self._table.get(namespace)
        if entries is None:
            raise QueryNotFound(f"the name server has no namespace {namespace!r}", hint="Add a key to it first")
        return entries

    def put(self, namespace: str, key: str, value: str, done: Callable[[LaterMQError | None], None]) -> None:
        """Set a key. Raises an error if that is not allowed. `done` receives None once it is on disk, or the error."""
        self._check_room_to_wait()
        _check_name("namespace", namespace)
        _check_name("key", key)
        old = self.get(namespace, key)
        grown_bytes = _size_bytes(namespace, key, value) - (0 if old is None else _size_bytes(namespace, key, old))
        if self._size_bytes + grown_bytes > self._max_bytes:
            raise ServiceUnavailable(
                f"the key-value table would exceed {self._max_bytes} bytes (namesrv.max_kv)",
                hint="Delete keys first",
            )
        if old is None and self._entries >= self._max_entries:
            raise ServiceUnavailable(
                f"the key-value table is full: {self._max_entries} keys (namesrv.max_kv_entries)",
                hint="Delete keys first",
            )
        self._table.setdefault(namespace, {})[key] = value
        self._size_bytes += grown_bytes
        self._entries += old is None
        self._save(done)

    def delete(self, namespace: str, key: str, done: Callable[[LaterMQError | None], None]) -> None:
        """Delete a key, if it exists. A namespace is removed with its last key, so that empty ones use no memory."""
        old = self.get(namespace, key)
        if old is None:
            done(None)
            return
        self._check_room_to_wait()
        del self._table[namespace][key]
        if not self._table[namespace]:
            del self._table[namespace]
        self._size_bytes -= _size_bytes(namespace, key, old)
        self._entries -= 1
        self._save(done)

    def finish(self) -> None:
        """Write unsaved changes to disk at exit."""
        if self._file is not None:
            self._file.finish()

    def statistics(self) -> dict[str, int]:
        return {
            "kv_entries": self._entries,
            "max_kv_entries": self._max_entries,
            "kv_bytes": self._size_bytes,
            "max_kv_bytes": self._max_bytes,
            "kv_waiting": self._file.waiting if self._file is not None else 0,
            "max_kv_waiting": MAX_WAITING,
        }

    def _check_room_to_wait(self) -> None:
        if self._file is not None and self._file.waiting >= MAX_WAITING:
            raise Busy(f"{MAX_WAITING} changes are waiting for the disk", hint="Try again in a moment")

    def _save(self, done: Callable[[LaterMQError | None], None]) -> None:
        if self._file is None:
            done(None)
            return

        file, changed = self._file, self._table

        def kept(error: LaterMQError | None) -> None:
            if error is not None and self._table is changed:  # only for the first of the failed changes
                self._load(_last_kept(file.written))
            done(error)

        file.change(kept)

    def _content(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(_File(self._table)), indent=2)

    def _load(self, table: Table) -> None:
        self._table = table
        self._entries = sum(map(len, table.values()))
        self._size_bytes = sum(
            _size_bytes(namespace, key, value) for namespace, entries in table.items() for key, value in entries.items()
        )


def _check_name(what: str, name: str) -> None:
    if not name.strip() or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise InvalidParameter(
            f"{what} {name[:40]!r} of {len(name)} characters is not a valid name",
            hint=f"A name has 1 to {MAX_NAME_CHARS} printable characters",
        )


def _size_bytes(namespace: str, key: str, value: str) -> int:
    return len(namespace.encode()) + len(key.encode()) + len(value.encode())


def _last_kept(data: bytes) -> Table:
    """The table on disk, to revert to. It is empty if the file was set aside and could not be written again."""
    try:
        return _parse(data).value if data else {}
    except UnparsableFileError:
        return {}


def _parse(data: bytes) -> Parsed[Table]:
    """Parse the file as a whole or, if that fails, by namespace, so that a damaged namespace affects no other."""
    try:
        return Parsed(msgspec.json.decode(data, type=_File).configTable)
    except UNREADABLE as error:
        written = dict(members(data)).get(b"configTable", b"")
        if not written.startswith(b"{"):
            raise UnparsableFileError(str(error)) from None
        parsed: Parsed[Table] = Parsed({}, repaired={"the file itself": str(error)})
    for name, value in members(written):
        try:
            parsed.value[msgspec.json.decode(b'"' + name + b'"', type=str)] = msgspec.json.decode(
                value, type=dict[str, str]
            )
        except UNREADABLE as error:
            parsed.lost[name.decode(errors="replace")] = str(error)
    return parsed
