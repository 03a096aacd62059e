"""Consumer offsets: each group's position in each queue. This is the table behind consumerOffset.json."""

from collections.abc import Callable, Iterator, Mapping

from latermq.config_json.java_json import encode_json
from latermq.errors import NoPermission
from latermq.model.data_version import DataVersion
from latermq.model.offset_table import OffsetTable
from latermq.timer.steps import Steps, spend

_SEPARATOR = "@"
_PAIRS_PER_STEP = 50
# Queues that are encoded together, in about 0.2 ms. A topic may have 65,535 queues, and they change one at a time.
BLOCK_QUEUES = 256
_BLOCK_STEPS = 64

QueueEnd = Callable[[str, int], int]  # (topic, queue id) → end offset


def _key(topic: str, group: str) -> str:
    return topic + _SEPARATOR + group


class ConsumerOffsets:
    """The next offset that each group will read, by topic and queue.

    The text of each entry of the file is kept next to the table. Encoding all of 200,000 offsets because one of them
    changed would block the broker for 0.2 s.
    """

    def __init__(self, table: OffsetTable, max_offsets: int) -> None:
        self._table = table.offsets
        self._version = table.version
        self._max_offsets = max_offsets
        self._count = sum(map(len, self._table.values()))
        self._topics: dict[str, set[str]] = {}  # by group
        self._groups: dict[str, set[str]] = {}  # by topic
        for topic, _, group in (key.partition(_SEPARATOR) for key in self._table):
            self._topics.setdefault(group, set()).add(topic)
            self._groups.setdefault(topic, set()).add(group)
        self.changed = False
        self._texts: dict[str, bytes] = {}  # key → its part of the file
        self._blocks: dict[str, dict[int, bytes]] = {}  # key → its blocks, only for keys with several blocks
        # (key, block) pairs to encode, in the order in which they changed.
        self._stale: dict[tuple[str, int], None] = {}

    def get(self, group: str, topic: str, queue_id: int) -> int:
        """Return the stored offset, or -1 if there is none."""
        queues = self._table.get(_key(topic, group))
        return queues.get(queue_id, -1) if queues else -1

    def put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store an offset. It may be lower than the current one, for example after a reset."""
        key = _key(topic, group)
        queues = self._table.get(key)
        if queues is None or queue_id not in queues:
            self.check_room(1)
            if queues is None:
                queues = self._table[key] = {}
                self._topics.setdefault(group, set()).add(topic)
                self._groups.setdefault(topic, set()).add(group)
            self._count += 1
        elif queues[queue_id] == offset:
            return  # nothing to save
        queues[queue_id] = offset
        self._stale[key, queue_id // BLOCK_QUEUES] = None
        self.changed = True

    def put_all(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Store the offsets of many queues: all of them or, if the limit is exceeded, none."""
        known = self._table.get(_key(topic, group), {})
        self.check_room(sum(queue_id not in known for queue_id in offsets))
        for queue_id, offset in offsets.items():
            self.put(group, topic, queue_id, offset)

    def check_room(self, count: int) -> None:
        """Raise NoPermission if the table cannot hold `count` new offsets."""
        if self._count + count > self._max_offsets:
            raise NoPermission(
                f"{self._count} consumer offsets are stored; broker.max_offsets is {self._max_offsets}",
                hint="Delete unused groups and their offsets, or raise broker.max_offsets",
            )

    def of_topic(self, group: str, topic: str) -> dict[int, int]:
        """Return all offsets of a group in a topic."""
        return dict(self._table.get(_key(topic, group), {}))

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has offsets."""
        return sorted(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets in a topic."""
        return sorted(self._groups.get(topic, ()))

    def has_any(self, group: str) -> bool:
        """Return whether a group has offsets in any topic."""
        return group in self._topics

    def pairs(self) -> Steps[list[tuple[str, str]]]:
        """Return every (topic, group) pair that has offsets, in steps."""
        found = []
        for key in list(self._table):
            topic, _, group = key.partition(_SEPARATOR)
            found.append((topic, group))
            if len(found) % _PAIRS_PER_STEP == 0:
                yield
        return found

    def known_pairs(self) -> Iterator[tuple[str, str]]:
        """Yield every (topic, group) pair that has offsets now. They may change during the iteration."""
        for key in list(self._table):
            topic, _, group = key.partition(_SEPARATOR)
            yield topic, group

    def all(self) -> Iterator[tuple[str, int, int]]:
        """Yield every stored offset with its topic and queue."""
        for key, queues in list(self._table.items()):
            topic = key.partition(_SEPARATOR)[0]
            for queue_id, offset in queues.items():
                yield topic, queue_id, offset

    def groups(self) -> set[str]:
        """Return every group that has offsets in any topic."""
        return set(self._topics)

    def copy(self, source: str, target: str, topic: str) -> None:
        """Copy the offsets of group `source` in a topic to group `target`."""
        queues = self._table.get(_key(topic, source))
        if queues and source != target:
            self.check_room(len(queues))
            self._remove(topic, target)
            for queue_id, offset in queues.items():
                self.put(target, topic, queue_id, offset)

    def remove_group(self, group: str) -> None:
        """Remove all offsets of a group."""
        for topic in self.topics_of(group):
            self._remove(topic, group)

    def remove_topic(self, topic: str) -> None:
        """Remove all offsets in a topic."""
        for group in self.groups_of(topic):
            self._remove(topic, group)

    def _remove(self, topic: str, group: str) -> None:
        key = _key(topic, group)
        queues = self._table.pop(key, None)
        if queues is None:
            return
        self._count -= len(queues)
        self._texts.pop(key, None)
        self._blocks.pop(key, None)
        for index, name in ((self._topics, (group, topic)), (self._groups, (topic, group))):
            index[name[0]].discard(name[1])
            if not index[name[0]]:
                del index[name[0]]
        self.changed = True

    def clamp(self, queue_end: QueueEnd) -> int:
        """Reduce offsets beyond the end of their queue to that end. Return how many there were."""
        count = 0
        for key, queues in self._table.items():
            topic = key.partition(_SEPARATOR)[0]
            self._touch_all(key)
            for queue_id, offset in queues.items():
                end = queue_end(topic, queue_id)
                if offset > end:
                    queues[queue_id] = end
                    count += 1
        self.changed = self.changed or count > 0
        return count

    # The file

    @property
    def stale_blocks(self) -> int:
        """The number of blocks that have changed since they were encoded."""
        return len(self._stale)

    def encode(self, flushed_end: QueueEnd, blocks: int) -> None:
        """Encode up to `blocks` changed blocks, the oldest change first.

        Offsets are capped at the flushed end of their queue, because a power failure could lose the messages beyond it.
        """
        for _ in range(min(blocks, len(self._stale))):
            key, block = next(iter(self._stale))
            del self._stale[key, block]
            if key in self._table and not self._encode_block(key, block, flushed_end):
                self._stale[key, block] = None  # encode it again later, when more is flushed

    def encode_of(self, group: str, topic: str, flushed_end: QueueEnd) -> Steps[None]:
        """Encode all changed blocks of a group in a topic, in steps."""
        key = _key(topic, group)
        for block in {queue_id // BLOCK_QUEUES for queue_id in self._table.get(key, ())}:
            if self._stale.pop((key, block), self) is None and key in self._table:
                if not self._encode_block(key, block, flushed_end):
                    self._stale[key, block] = None
                yield from spend(_BLOCK_STEPS)

    def _encode_block(self, key: str, block: int, flushed_end: QueueEnd) -> bool:
        """Encode one block. Return False if any of its offsets was capped at the flushed end."""
        queues, topic = self._table[key], key.partition(_SEPARATOR)[0]
        ids = range(block * BLOCK_QUEUES, (block + 1) * BLOCK_QUEUES)
        is_whole = True
        pieces = []
        for queue_id in ids if len(queues) > BLOCK_QUEUES else queues:
            if queue_id in ids and queue_id in queues:
                offset, end = queues[queue_id], flushed_end(topic, queue_id)
                is_whole = is_whole and offset <= end
                pieces.append(b'"%d":%d' % (queue_id, min(offset, end)))
        if not pieces:
            return True  # it changed before its group or topic was removed and created again
        text, name = b",".join(pieces), encode_json(key) + b":{"
        blocks = self._blocks.get(key)
        if blocks is None and block != 0:
            # Until now the text had at most one block.
            blocks = self._blocks[key] = {}
            if key in self._texts:
                blocks[0] = self._texts[key][len(name) : -1]
        if blocks is not None:
            blocks[block] = text
            text = b",".join(blocks.values())
        self._texts[key] = name + text + b"}"
        return is_whole

    def _touch_all(self, key: str) -> None:
        for block in {queue_id // BLOCK_QUEUES for queue_id in self._table[key]}:
            self._stale[key, block] = None

    def pieces(self, now_ms: int) -> tuple[list[bytes], DataVersion]:
        """Return the entries of the file as last encoded, and its new version."""
        self._version.bump(now_ms)
        return list(self._texts.values()), self._version.copy()

    def statistics(self) -> dict[str, int]:
        """Return the number of stored offsets."""
        return {"consumer_offsets": self._count}
