"""Consumer offsets: how far each group has come in each queue, the table behind consumerOffset.json."""

from collections.abc import Callable, Iterator, Mapping

from latermq.protocol.remoting.bodies import DataVersion, OffsetTable
from latermq.timer.steps import Steps

_SEPARATOR = "@"
_PAIRS_A_STEP = 50


def _key(topic: str, group: str) -> str:
    return topic + _SEPARATOR + group


class ConsumerOffsets:
    """The next offset each group wants, by topic and queue."""

    def __init__(self, table: OffsetTable) -> None:
        self._table = table.offsetTable
        self._version = table.dataVersion
        self.changed = False

    def get(self, group: str, topic: str, queue_id: int) -> int:
        """The stored offset, -1 where there is none."""
        queues = self._table.get(_key(topic, group))
        return queues.get(queue_id, -1) if queues else -1

    def put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store an offset; it may go back, as a reset does."""
        self._table.setdefault(_key(topic, group), {})[queue_id] = offset
        self.changed = True

    def put_all(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Store offsets of many queues."""
        self._table.setdefault(_key(topic, group), {}).update(offsets)
        self.changed = True

    def of_topic(self, group: str, topic: str) -> dict[int, int]:
        """All offsets of a group in a topic."""
        return dict(self._table.get(_key(topic, group), {}))

    def topics_of(self, group: str) -> list[str]:
        """The topics that a group has offsets in."""
        return sorted(topic for topic, owner in self._pairs() if owner == group)

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets in a topic."""
        return sorted(owner for name, owner in self._pairs() if name == topic)

    def pairs(self) -> Steps[list[tuple[str, str]]]:
        """Every topic and group between which there are offsets."""
        found = []
        for pair in self._pairs():
            found.append(pair)
            if len(found) % _PAIRS_A_STEP == 0:
                yield
        return found

    def all(self) -> Iterator[tuple[str, int, int]]:
        """Every stored offset, with its topic and queue."""
        for (topic, _), queues in zip(self._pairs(), list(self._table.values()), strict=True):
            for queue_id, offset in queues.items():
                yield topic, queue_id, offset

    def groups(self) -> set[str]:
        """Every group that has offsets anywhere."""
        return {group for _, group in self._pairs()}

    def _pairs(self) -> Iterator[tuple[str, str]]:
        for key in list(self._table):
            topic, _, group = key.partition(_SEPARATOR)
            yield topic, group

    def copy(self, source: str, target: str, topic: str) -> None:
        """Give one group another one's offsets in a topic."""
        queues = self._table.get(_key(topic, source))
        if queues:
            self._table[_key(topic, target)] = dict(queues)
            self.changed = True

    def remove_group(self, group: str) -> None:
        """Forget a group's offsets."""
        for topic in self.topics_of(group):
            del self._table[_key(topic, group)]
            self.changed = True

    def remove_topic(self, topic: str) -> None:
        """Forget all offsets in a topic."""
        for group in self.groups_of(topic):
            del self._table[_key(topic, group)]
            self.changed = True

    def snapshot(self, now_ms: int, flushed_end: Callable[[str, int], int]) -> OffsetTable:
        """The table to store: no offset beyond what of its queue is safe from a power cut."""
        self._version.bump(now_ms)
        version = DataVersion(
            counter=self._version.counter, stateVersion=self._version.stateVersion, timestamp=self._version.timestamp
        )
        return OffsetTable(offsetTable=self._clamped(flushed_end), dataVersion=version)

    def equals(self, table: OffsetTable) -> bool:
        """Whether a table holds exactly these offsets."""
        return self._table == table.offsetTable

    def clamp(self, queue_end: Callable[[str, int], int]) -> int:
        """Bring offsets that lie beyond their queue's end back to it; how many there were."""
        clamped = self._clamped(queue_end)
        count = sum(
            offset != self._table[key][queue_id]
            for key, queues in clamped.items()
            for queue_id, offset in queues.items()
        )
        if count:
            self._table = clamped
            self.changed = True
        return count

    def _clamped(self, queue_end: Callable[[str, int], int]) -> dict[str, dict[int, int]]:
        return {
            key: {
                queue_id: min(offset, queue_end(key.partition(_SEPARATOR)[0], queue_id))
                for queue_id, offset in queues.items()
            }
            for key, queues in self._table.items()
        }
