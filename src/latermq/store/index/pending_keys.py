"""Keys of recently appended records: they are hashed and added to the index in batches."""

from latermq.store.dispatch import IndexKeys, index_keys
from latermq.store.index.key_index import KeyIndex

INDEX_BATCH = 1000  # records per batch of keys for the index
# Longer properties may hold hundreds of keys. INDEX_BATCH_BYTES limits their total size in a batch.
LONG_PROPERTIES = 512
INDEX_BATCH_BYTES = 128 << 10


class PendingKeys:
    """Keys that are not in the index yet, in the order of the records."""

    def __init__(self, index: KeyIndex) -> None:
        self._index = index
        # (topic, properties, physical offset, store time) of each record. The writer keeps a reference to this list.
        self.rows: list[tuple[str, bytes, int, int]] = []
        self.long_bytes = 0  # total size of long properties in `rows`
        self._hashed: list[IndexKeys] = []

    def __len__(self) -> int:
        return len(self.rows) + sum(len(keys.hashes) for keys in self._hashed)

    def put(self) -> None:
        """Add all pending keys to the index. Raises StoreError if there is no space; then they are kept."""
        self._hash_rows()
        while self._hashed:
            self._index.put(self._hashed[0])
            del self._hashed[0]

    def note_long(self, properties_bytes: int) -> None:
        """Count properties that may hold many keys and are about to be stored. First add a full batch to the index."""
        if self.long_bytes + properties_bytes > INDEX_BATCH_BYTES:
            self.put()
        self.long_bytes += properties_bytes

    def add_hashed(self, keys: IndexKeys) -> None:
        """Add keys that are already hashed, after the pending ones."""
        self._hash_rows()
        self._hashed.append(keys)

    def _hash_rows(self) -> None:
        self.long_bytes = 0
        if self.rows:
            self._hashed.append(index_keys(*zip(*self.rows, strict=True)))
            self.rows.clear()
