"""The stage: blocks due in the next seconds, built in advance, in due order, bounded in bytes."""

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from latermq.arrays import Ints
from latermq.store.block import Block


@dataclass(order=True, slots=True)
class Staged:
    """A block whose first record is due at `due_ms`; `number` is the order of staging."""

    due_ms: int
    number: int
    block: Block = field(compare=False)
    dues: Ints = field(compare=False)


class Stage:
    """Blocks by the due time of their first record. Blocks may overlap; each one is in due order."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._heap: list[Staged] = []
        self._numbers = itertools.count()
        self.size_bytes = 0
        self.records = 0

    @property
    def has_room(self) -> bool:
        """Whether another block may be built; the last one may exceed the bound by its own size."""
        return self.size_bytes < self._max_bytes

    def put(self, block: Block, dues: Ints) -> None:
        """Add a block; `dues` are its records' due times, in order."""
        assert dues[0] <= dues[-1], f"a staged block is in due order, but begins at {dues[0]} and ends at {dues[-1]}"
        self._push(Staged(int(dues[0]), next(self._numbers), block, dues))

    def _push(self, staged: Staged) -> None:
        heapq.heappush(self._heap, staged)
        self.size_bytes += staged.block.cost
        self.records += len(staged.block)

    def head_due_ms(self) -> int | None:
        """Return when the next record is due; None if the stage is empty."""
        return self._heap[0].due_ms if self._heap else None

    def blocks(self, *, level: int) -> Iterator[tuple[Block, Ints]]:
        """Return the blocks of one level with the due times of their records, in any order."""
        return ((staged.block, staged.dues) for staged in self._heap if staged.block.level == level)

    def count_due(self, now_ms: int, *, level: int) -> int:
        """Number of due records of one level; scans every block."""
        return sum(int(np.searchsorted(dues, now_ms, side="right")) for _, dues in self.blocks(level=level))

    def pop(self, now_ms: int, max_bytes: int) -> tuple[Block, Ints] | None:
        """Return due records of one level, earliest first; None if none is due.

        They take at most `max_bytes`, or are a single longer record. Keys count towards the size if a record has very
        many.

        Blocks are built small, so that building does not block other work. They are joined here, because each append
        costs 0.5 ms.
        """
        blocks: list[Block] = []
        dues: list[Ints] = []
        while max_bytes > 0 and self._heap and self._heap[0].due_ms <= now_ms:
            head = self._heap[0]
            # Popped records are in due order too, whatever happens to them next.
            if blocks and (head.block.level != blocks[0].level or head.due_ms < dues[-1][-1]):
                break
            if blocks and head.block.is_far != blocks[0].is_far:
                break
            if blocks and head.block.costs[0] > max_bytes:
                break
            block, own_dues = self._pop_first(now_ms, max_bytes)
            blocks.append(block)
            dues.append(own_dues)
            max_bytes -= block.cost
        return (Block.join(blocks), np.concatenate(dues)) if blocks else None

    def _pop_first(self, now_ms: int, max_bytes: int) -> tuple[Block, Ints]:
        """Return the due records of the block with the earliest due time."""
        staged = heapq.heappop(self._heap)
        count = int(np.searchsorted(staged.dues, now_ms, side="right"))
        if staged.block.cost > max_bytes:
            fitting = int(np.searchsorted(np.cumsum(staged.block.costs), max_bytes, side="right"))
            count = min(count, max(1, fitting))
        self.size_bytes -= staged.block.cost
        self.records -= len(staged.block)
        if count < len(staged.block):
            # The rest keeps its number: records due at the same time go in order of staging.
            rest = staged.dues[count:]
            self._push(Staged(int(rest[0]), staged.number, staged.block.part(count, len(staged.block)), rest))
            return staged.block.part(0, count), staged.dues[:count]
        return staged.block, staged.dues

    def statistics(self) -> dict[str, int]:
        """Number of staged records, bytes and blocks."""
        return {"staged_records": self.records, "staged_bytes": self.size_bytes, "staged_blocks": len(self._heap)}
