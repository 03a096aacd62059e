"""Saving of the broker's tables: one round at a time, off the loop. Offsets are encoded in slices beforehand."""

import asyncio
from collections.abc import Callable

from latermq.broker.tables.table_saver import Tables
from latermq.errors import LaterMQError
from latermq.group.offsets import ConsumerOffsets
from latermq.server.handlers.async_replies import WhenDone, Work

# This takes 0.1 ms for typical blocks of a few offsets, and 2 ms if topics have hundreds of queues.
_OFFSET_BLOCKS_PER_SLICE = 8


class TableSaver:
    """Saves topics and groups when they change, and offsets periodically."""

    def __init__(
        self, tables: Tables, offsets: ConsumerOffsets, run_off_loop: Callable[[list[Work], WhenDone], None]
    ) -> None:
        """`run_off_loop` runs blocking work in order, off the loop."""
        self._tables = tables
        self._offsets = offsets
        self._run_off_loop = run_off_loop
        self._is_saving = self._save_again = self._with_offsets = False
        self._encoding: asyncio.Handle | None = None

    def save_topics(self, when_done: WhenDone) -> None:
        """Save the tables that messages wait for, without offsets."""
        self._run_off_loop(self._tables.savers(with_offsets=False), when_done)

    def save_all(self) -> None:
        """Save all changes, including offsets. Offsets that change during encoding are saved by the next call."""
        if self._encoding is None:
            self._encode(self._offsets.stale_blocks)

    def _encode(self, blocks: int) -> None:
        self._encoding = None
        self._tables.encode_offsets(min(blocks, _OFFSET_BLOCKS_PER_SLICE))
        left = blocks - _OFFSET_BLOCKS_PER_SLICE
        if left > 0:
            self._encoding = asyncio.get_running_loop().call_soon(self._encode, left)
        else:
            self._with_offsets = True
            self.save()

    def save(self) -> None:
        """Save changes, one round at a time. Changes during a round are saved by the next one."""
        if self._is_saving:
            self._save_again = True
            return
        with_offsets, self._with_offsets = self._with_offsets, False
        savers = self._tables.savers(with_offsets=with_offsets)
        if savers:
            self._is_saving = True
            self._run_off_loop(savers, self._on_saved)

    def _on_saved(self, error: LaterMQError | None) -> None:
        self._is_saving = False
        if self._save_again:
            self._save_again = False
            if error is None:
                self.save()

    def stop(self) -> None:
        """Stop encoding. Closing the broker saves the rest."""
        if self._encoding is not None:
            self._encoding.cancel()
