"""Keys of records that were appended lately: they are hashed and put into the index in batches."""

from latermq.store.dispatch import IndexKeys, index_keys
from latermq.store.key_index import KeyIndex

INDEX_BATCH = 1000  # keys are put into the index in batches of this many records
# Properties longer than this may hold hundreds of keys: of such ones batches have so many bytes at most.
LONG_PROPERTIES = 512
INDEX_BATCH_BYTES = 128 << 10


class PendingKeys:
    """What the index does not have yet, in the order of the records."""

    def __init__(self, index: KeyIndex) -> None:
        self._index = index
        # (topic, properties, physical offset, store time) of each record; it stays the same list, for the writer.
        self.rows: list[tuple[str, bytes, int, int]] = []
        self.long_bytes = 0  # of long properties among these
        self._hashed: list[IndexKeys] = []

    def __len__(self) -> int:
        return len(self.rows) + sum(len(keys.hashes) for keys in self._hashed)

    def put(self) -> None:
        """Put all of them into the index. Raises StoreError where it has no space; they are kept then."""
        self._hash_rows()
        while self._hashed:
            self._index.put(self._hashed[0])
            del self._hashed[0]

    def note_long(self, properties_bytes: int) -> None:
        """Properties are about to be stored that may hold many keys: those before come first, where they are many."""
        if self.long_bytes + properties_bytes > INDEX_BATCH_BYTES:
            self.put()
        self.long_bytes += properties_bytes

    def add_hashed(self, keys: IndexKeys) -> None:
        """Add keys that were hashed ahead, behind those that were not."""
        self._hash_rows()
        self._hashed.append(keys)

    def _hash_rows(self) -> None:
        self.long_bytes = 0
        if self.rows:
            self._hashed.append(index_keys(*zip(*self.rows, strict=True)))
            self.rows.clear()
