"""The name server's key-value table: namespace → key → value, kept in Apache's kvConfig.json where there is a disk."""

import msgspec

from latermq.errors import CorruptStore, QueryNotFound, ServiceUnavailable
from latermq.store.disk import Disk

FILE = "kvConfig.json"
ORDER_TOPICS = "ORDER_TOPIC_CONFIG"  # the namespace that says on which brokers an ordered topic has how many queues

MAX_BYTES = 16 << 20  # of all names and values: what one answer can hold


# The field name below is that in the file.
class _File(msgspec.Struct):
    configTable: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)


class KVConfigs:
    """Every change is on disk before it is answered; without a disk the table ends with the process."""

    def __init__(self, disk: Disk | None = None) -> None:
        self._disk = disk
        self._table = _read(disk) if disk is not None else {}
        self._size_bytes = sum(
            _size_bytes(namespace, key, value)
            for namespace, entries in self._table.items()
            for key, value in entries.items()
        )

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def entries(self, namespace: str) -> dict[str, str]:
        """All of one namespace."""
        entries = self._table.get(namespace)
        if entries is None:
            raise QueryNotFound(f"the name server holds no namespace {namespace!r}", hint="Put a key into it first")
        return entries

    def put(self, namespace: str, key: str, value: str) -> None:
        old = self.get(namespace, key)
        grown_bytes = _size_bytes(namespace, key, value)
        if old is not None:
            grown_bytes -= _size_bytes(namespace, key, old)
        if self._size_bytes + grown_bytes > MAX_BYTES:
            raise ServiceUnavailable(f"the key-value table is full ({MAX_BYTES} bytes)", hint="Delete keys first")
        self._replace({**self._table, namespace: {**self._table.get(namespace, {}), key: value}}, grown_bytes)

    def delete(self, namespace: str, key: str) -> None:
        """Forget a key; fine where there is none."""
        old = self.get(namespace, key)
        if old is not None:
            kept = {name: value for name, value in self._table[namespace].items() if name != key}
            self._replace({**self._table, namespace: kept}, -_size_bytes(namespace, key, old))

    def statistics(self) -> dict[str, int]:
        return {"kv_entries": sum(map(len, self._table.values())), "kv_bytes": self._size_bytes}

    def _replace(self, table: dict[str, dict[str, str]], grown_bytes: int) -> None:
        # The disk first: a change that cannot be kept is refused and has not happened.
        if self._disk is not None:
            self._disk.replace(FILE, msgspec.json.format(msgspec.json.encode(_File(table)), indent=2))
        self._table = table
        self._size_bytes += grown_bytes


def _size_bytes(namespace: str, key: str, value: str) -> int:
    return len(namespace) + len(key) + len(value)


def _read(disk: Disk) -> dict[str, dict[str, str]]:
    data = disk.read(FILE)
    if not data:
        return {}
    try:
        return msgspec.json.decode(data, type=_File).configTable
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptStore(f"{FILE} does not parse: {error}", hint="Repair it or move it away") from None
