"""When the broker's tables are saved: one round at a time beside the loop, and offsets made ready for it in slices."""

import asyncio
from collections.abc import Callable

from latermq.broker.broker import Broker
from latermq.errors import LaterMQError
from latermq.server.handlers.late_replies import WhenDone, Work

# Of a few offsets each, as most are: 0.1 ms. Where topics have hundreds of queues: 2 ms.
_OFFSET_BLOCKS_AT_ONCE = 8


class TableSaver:
    """Saves topics and groups when they changed, offsets from time to time."""

    def __init__(self, broker: Broker, beside: Callable[[list[Work], WhenDone], None]) -> None:
        """`beside` does work that blocks, in order, off the loop."""
        self._broker = broker
        self._beside = beside
        self._saving = self._save_again = self._with_offsets = False
        self._encoding: asyncio.Handle | None = None

    def save_topics(self, when_done: WhenDone) -> None:
        """Save what messages wait for."""
        self._beside(self._broker.tables.savers(with_offsets=False), when_done)

    def save_all(self) -> None:
        """Save what changed, offsets too; those that change while they are made ready are left to the next time."""
        if self._encoding is None:
            self._encode(self._broker.offsets.stale_blocks)

    def _encode(self, blocks: int) -> None:
        self._encoding = None
        self._broker.tables.encode_offsets(min(blocks, _OFFSET_BLOCKS_AT_ONCE))
        left = blocks - _OFFSET_BLOCKS_AT_ONCE
        if left > 0:
            self._encoding = asyncio.get_running_loop().call_soon(self._encode, left)
        else:
            self._with_offsets = True
            self.save()

    def save(self) -> None:
        """One round at a time: what changes meanwhile is saved by the next."""
        if self._saving:
            self._save_again = True
            return
        with_offsets, self._with_offsets = self._with_offsets, False
        savers = self._broker.tables.savers(with_offsets=with_offsets)
        if savers:
            self._saving = True
            self._beside(savers, self._saved)

    def _saved(self, error: LaterMQError | None) -> None:
        self._saving = False
        if self._save_again:
            self._save_again = False
            if error is None:
                self.save()

    def stop(self) -> None:
        """Whoever closes the broker saves the rest."""
        if self._encoding is not None:
            self._encoding.cancel()
