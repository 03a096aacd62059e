"""Queues that members of a group pull, for groups whose members partly pull and partly pop.

A member that pulls holds messages that it has not committed yet. So pops leave its queues alone, and a pull leaves out
what was popped.
"""

from latermq.broker.tables.topics import Topics
from latermq.clock import Clock
from latermq.group.members import Channel, Members
from latermq.group.pop.table import InFlightTable

# A queue belongs to a member for at least this long after its last pull or commit, and up to twice as long. Clients
# let a pull wait for 15 s, and commit the offsets of all their queues every 5 s.
KEEP_S = 20.0
MAX_QUEUES = 200_000  # about 40 MB; beyond it, members may get some messages twice

Key = tuple[str, str, int]  # group, topic, queue id


class PulledQueues:
    """The queues that were pulled in the last seconds, in two generations, and the part of a queue left to pulls."""

    def __init__(self, table: InFlightTable, topics: Topics, members: Members, client_clock: Clock) -> None:
        self._table = table
        self._popped = table.queues
        self._topics = topics
        self._members = members
        self._clock = client_clock
        self._recent: dict[Key, Channel] = {}
        self._earlier: dict[Key, Channel] = {}
        self._since_s = client_clock.monotonic_s()
        self.overflows = 0

    def pull(self, group: str, topic: str, queue_id: int, offset: int, by: Channel) -> tuple[int, int | None] | None:
        """Note a pull. If the group has also popped from the queue, return the offset to pull from, and the end if any.

        Everything from the floor of the queue on to its next offset is in flight or acknowledged. A client that
        has just got the queue may have read the group's offset before pops went on, so it does not start before that.
        """
        key = group, topic, queue_id
        queue = self._popped.get(key)
        if queue is None:
            self._recent[key] = by
            return None
        is_new = by is not (self._recent.get(key) or self._earlier.get(key))
        self._recent[key] = by
        floor = self._table.floor(queue)
        if offset < floor and not is_new:
            return offset, floor
        return max(offset, self._table.next_of(queue)), None

    def renew(self, group: str, topic: str, queue_id: int, by: Channel) -> None:
        """Note a commit. A member that is busy with what it has pulled still commits every few seconds."""
        key = group, topic, queue_id
        if self._earlier.get(key) is by:
            self._recent[key] = by

    def next_offset(self, group: str, topic: str, queue_id: int, offset: int) -> int:
        """Return the offset at which a pull that waits at this one continues."""
        queue = self._popped.get((group, topic, queue_id))
        return offset if queue is None else max(offset, self._table.next_of(queue))

    def is_pulled(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a connected member of the group pulls this queue."""
        key = group, topic, queue_id
        channel = self._recent.get(key) or self._earlier.get(key)
        return channel is not None and self._members.consumes(group, channel)

    def is_topic_pulled(self, group: str, topic: str) -> bool:
        """Whether a connected member of the group pulls any queue of this topic."""
        config = self._topics.find(topic)
        return config is not None and any(self.is_pulled(group, topic, n) for n in range(config.read_queues))

    def forget_old(self) -> set[tuple[str, str]]:
        """Forget queues that are no longer pulled. Call it about once per second.

        Returns the groups and topics of these queues: pops may take them now.
        """
        now_s = self._clock.monotonic_s()
        forgotten = set()
        if now_s - self._since_s >= KEEP_S:
            forgotten = {key[:2] for key in self._earlier.keys() - self._recent.keys()}
            self._earlier, self._recent, self._since_s = self._recent, {}, now_s
        if len(self._recent) > MAX_QUEUES:
            self._recent = {}
            self.overflows += 1
        return forgotten

    def statistics(self) -> dict[str, int]:
        """Return the number of queues that were pulled recently."""
        return {"pulled_queues": len(self._recent) + len(self._earlier)}
