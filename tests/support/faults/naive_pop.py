"""What POP consumption must do, in the plainest way: one entry per message, searched from end to end."""

from collections.abc import Container
from copy import deepcopy
from dataclasses import dataclass, field

from latermq.group.pop.operations import PopOperations
from latermq.group.pop.rows import IN_ORDER, SUSPENDED, offsets_of

LEASE_MS = 60_000
HOLD_MS = 3 * 3_600_000
Key = tuple[str, str, int]  # group, topic, queue id
Place = tuple[str, int, int]  # topic, queue id, offset


@dataclass
class Held:
    """A message in flight."""

    pop_ms: int
    visible_ms: int
    lease: int = 0
    is_suspended: bool = False
    is_ordered: bool = False
    count: int = 0


@dataclass
class NaiveQueue:
    """A group's position in a queue."""

    next: int
    held: dict[int, Held] = field(default_factory=dict)
    attempt: int = 0
    order_pop_ms: int = 0

    @property
    def floor(self) -> int:
        return min(self.held, default=self.next)


@dataclass
class NaivePop:
    """The state that a journal record leaves behind."""

    queues: dict[Key, NaiveQueue] = field(default_factory=dict)
    acked: list[tuple[str, Place]] = field(default_factory=list)
    skipped: set[tuple[str, Place]] = field(default_factory=set)
    leases: dict[int, int] = field(default_factory=dict)  # lease → end; in memory only

    def copy(self) -> "NaivePop":
        return deepcopy(self)

    # Messages

    def pop(self, key: Key, offsets: list[int], next_offset: int, pop_ms: int, visible_ms: int, lease: int) -> None:
        queue = self.queues[key]
        for held in queue.held.values():
            held.is_ordered = held.is_ordered and not offsets
        for offset in offsets:
            assert offset >= queue.next
            queue.held[offset] = Held(pop_ms, visible_ms, lease)
        self.skip(key, next_offset, set(offsets))

    def skip(self, key: Key, next_offset: int, taken: set[int]) -> None:
        queue = self.queues[key]
        self.skipped |= {(key[0], (key[1], key[2], at)) for at in range(queue.next, next_offset) if at not in taken}
        queue.next = max(queue.next, next_offset)

    def redelivery(self, key: Key, now_ms: int, attempt: int) -> tuple[list[int], bool] | None:
        queue = self.queues[key]
        ordered = {offset: held for offset, held in sorted(queue.held.items()) if held.is_ordered}
        same = [offset for offset, held in ordered.items() if held.pop_ms == queue.order_pop_ms]
        if attempt and attempt == queue.attempt and same:
            return same, True
        if any(held.visible_ms > now_ms for held in ordered.values()):
            return None
        return list(ordered), False

    def pop_in_order(
        self, key: Key, offsets: list[int], next_offset: int, pop_ms: int, visible_ms: int, lease: int, attempt: int,
        *, is_repeat: bool,
    ) -> list[tuple[int, int]]:  # fmt: skip
        queue = self.queues[key]
        for offset in offsets:
            old = queue.held.get(offset)
            count = 0 if old is None else old.count + (not is_repeat and not old.is_suspended)
            assert old is not None or offset >= queue.next
            queue.held[offset] = Held(pop_ms, visible_ms, lease, is_ordered=True, count=count)
        if offsets:
            queue.attempt, queue.order_pop_ms = attempt, pop_ms
        self.skip(key, next_offset, set(offsets))
        return [(offset, queue.held[offset].count) for offset in offsets]

    def matches(self, key: Key, offset: int, pop_ms: int) -> bool:
        held = self.queues[key].held.get(offset) if key in self.queues else None
        return held is not None and held.pop_ms == pop_ms

    def ack(self, key: Key, offset: int) -> None:
        del self.queues[key].held[offset]
        self.acked.append((key[0], (key[1], key[2], offset)))

    def gone(self, key: Key, offset: int) -> None:
        del self.queues[key].held[offset]

    def change(self, key: Key, offset: int, pop_ms: int, visible_ms: int, *, is_suspended: bool) -> None:
        held = self.queues[key].held[offset]
        held.pop_ms, held.visible_ms, held.is_suspended, held.lease = pop_ms, visible_ms, is_suspended, 0

    # Queues

    def reset(self, key: Key, next_offset: int) -> None:
        queue = self.queues[key]
        self.skipped |= {(key[0], (key[1], key[2], at)) for at in {*queue.held, *range(queue.next, next_offset)}}
        queue.next, queue.held, queue.attempt = next_offset, {}, 0

    def remove(self, keys: list[Key]) -> None:
        for key in keys:
            del self.queues[key]

    def forget_places(self, topic: str) -> None:
        """Forget what was consumed of a deleted topic: other messages get its offsets."""
        self.acked = [one for one in self.acked if one[1][0] != topic]
        self.skipped = {one for one in self.skipped if one[1][0] != topic}

    # Time

    def leased(self, lease: int) -> list[Held]:
        return [held for queue in self.queues.values() for held in queue.held.values() if held.lease == lease]

    def renew(self, lease: int, now_ms: int) -> None:
        if lease and self.leased(lease):
            self.leases[lease] = max(now_ms + LEASE_MS, self.leases.get(lease, 0))

    def end_lease(self, lease: int, visible_ms: int) -> None:
        self.lose(lease, {held.pop_ms for held in self.leased(lease)}, visible_ms)

    def lose(self, lease: int, pop_times_ms: Container[int], visible_ms: int) -> int:
        lost = [held for held in self.leased(lease) if held.pop_ms in pop_times_ms]
        for held in lost:
            held.lease, held.visible_ms = 0, min(held.visible_ms, visible_ms)
        return len({held.pop_ms for held in lost})

    def pass_time(self, now_ms: int) -> None:
        for lease in [lease for lease, until_ms in self.leases.items() if until_ms <= now_ms]:
            del self.leases[lease]
            self.end_lease(lease, now_ms)

    def due(self, now_ms: int) -> set[tuple[Key, int]]:
        return {
            (key, offset)
            for key, queue in self.queues.items()
            for offset, held in queue.held.items()
            if held.visible_ms <= now_ms and not held.is_ordered
        }

    def start(self, now_ms: int, in_doubt_since_ms: int) -> None:
        leases = {held.lease for queue in self.queues.values() for held in queue.held.values()} - {0}
        self.leases = dict.fromkeys(leases, now_ms + LEASE_MS)
        for lease in leases:
            self.lose(lease, range(in_doubt_since_ms, 1 << 62), now_ms + LEASE_MS)

    def compare(self, operations: PopOperations) -> None:
        """Fail unless the table is in this state, message by message."""
        table, rows = operations.table, operations.table.rows
        assert table.queues.keys() == self.queues.keys()
        for key, queue in self.queues.items():
            found = table.queues[key]
            held = {
                offset: Held(
                    rows.pop_ms[row], rows.visible_ms[row], rows.lease[row], bool(rows.flags[row] & SUSPENDED),
                    bool(rows.flags[row] & IN_ORDER), rows.count[row],
                )
                for row in found.all_rows()
                for offset in offsets_of(rows.first[row], rows.mask[row])
            }  # fmt: skip
            assert held == queue.held, (key, sorted(set(map(str, held.items())) ^ set(map(str, queue.held.items()))))
            assert all(table.locate(found, offset) >= 0 for offset in held)
            assert (table.next_of(found), table.floor(found), found.held) == (queue.next, queue.floor, len(held)), key
            assert found.ordered == sum(one.is_ordered for one in held.values())
        assert table.held == sum(len(queue.held) for queue in self.queues.values())
        floors: dict[tuple[str, int], int] = {}
        for (_, topic, queue_id), queue in self.queues.items():
            if queue.held:
                floors[topic, queue_id] = min(floors.get((topic, queue_id), queue.floor), queue.floor)
        assert table.held_floors() == floors
