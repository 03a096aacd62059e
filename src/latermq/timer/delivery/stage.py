"""The stage: what is due in the next seconds, built in advance, in due order, bounded in bytes."""

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
    """Blocks by the due time of their first record. Sources may overlap; each block is in order by itself."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._heap: list[Staged] = []
        self._numbers = itertools.count()
        self.size_bytes = 0
        self.records = 0

    @property
    def has_room(self) -> bool:
        """Whether another block may be built; the last one may go over the bound by its own size."""
        return self.size_bytes < self._max_bytes

    def put(self, block: Block, dues: Ints) -> None:
        """Take a block in; `dues` are its records' due times, in order."""
        self._push(Staged(int(dues[0]), next(self._numbers), block, dues))

    def _push(self, staged: Staged) -> None:
        heapq.heappush(self._heap, staged)
        self.size_bytes += staged.block.cost
        self.records += len(staged.block)

    def head_due_ms(self) -> int | None:
        """When the next record is due, None where the stage is empty."""
        return self._heap[0].due_ms if self._heap else None

    def blocks(self, *, level: int) -> Iterator[tuple[Block, Ints]]:
        """The blocks of one level with the due times of their records, in any order."""
        return ((staged.block, staged.dues) for staged in self._heap if staged.block.level == level)

    def count_due(self, now_ms: int, *, level: int) -> int:
        """How many records of one level are due; looks at every block."""
        return sum(int(np.searchsorted(dues, now_ms, side="right")) for _, dues in self.blocks(level=level))

    def pop(self, now_ms: int, max_bytes: int) -> tuple[Block, Ints] | None:
        """Due records of one level, those due first; None where none is due.

        They take at most `max_bytes`, or are one record that is longer; keys count where a record has very many.

        Blocks are built small, so that building holds nobody up, and joined here: an append costs 0.5 ms by itself.
        """
        blocks: list[Block] = []
        dues: list[Ints] = []
        while max_bytes > 0 and self._heap and self._heap[0].due_ms <= now_ms:
            head = self._heap[0]
            # What is popped is in due order too, whatever becomes of it.
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
        """The due records of the block that is due first."""
        staged = heapq.heappop(self._heap)
        count = int(np.searchsorted(staged.dues, now_ms, side="right"))
        if staged.block.cost > max_bytes:
            fitting = int(np.searchsorted(np.cumsum(staged.block.costs), max_bytes, side="right"))
            count = min(count, max(1, fitting))
        self.size_bytes -= staged.block.cost
        self.records -= len(staged.block)
        if count < len(staged.block):
            # The rest keeps its number: of records due together, those that came first go first.
            rest = staged.dues[count:]
            self._push(Staged(int(rest[0]), staged.number, staged.block.part(count, len(staged.block)), rest))
            return staged.block.part(0, count), staged.dues[:count]
        return staged.block, staged.dues

    def statistics(self) -> dict[str, int]:
        """How much is staged."""
        return {"staged_records": self.records, "staged_bytes": self.size_bytes, "staged_blocks": len(self._heap)}
