"""Delivery: appends staged blocks to their real topics at their due millisecond."""

from collections.abc import Callable

import numpy as np

from latermq.arrays import Ints
from latermq.errors import StoreError
from latermq.message.names import TIMER_TOPIC
from latermq.store.block import Block
from latermq.store.message_store import MessageStore
from latermq.timer.delivery.dead_letters import QUEUE as DEAD_LETTER_QUEUE
from latermq.timer.delivery.dead_letters import Undeliverable
from latermq.timer.delivery.delivered_counts import DeliveredCounts
from latermq.timer.delivery.in_flight import InFlight, new_dead_letters
from latermq.timer.delivery.stage import Stage
from latermq.timer.intake.settled import Settled

# The broker's internal queues, which always exist.
OWN_QUEUES = {(TIMER_TOPIC, 0), DEAD_LETTER_QUEUE}


class Delivery:
    """Pops due blocks from the stages. Blocks that cannot be appended now are kept back per queue."""

    def __init__(
        self,
        store: MessageStore,
        settled: Settled,
        in_flight: InFlight,
        counts: DeliveredCounts,
        *,
        place_of: Callable[[str, int], int | str],
        on_delivered: Callable[[str, int], None],
    ) -> None:
        """`place_of` maps a topic and a queue id to the queue that receives the message, or to a reason for none."""
        self._store = store
        self._settled = settled
        self._in_flight = in_flight
        self._counts = counts
        self._place_of = place_of
        self._on_delivered = on_delivered

    def deliver(self, now_ms: int) -> None:
        """Append due records: at most one block of those on time and one of overdue ones."""
        kept_back = self._in_flight.kept_back
        if kept_back and kept_back.wait_ms(now_ms) <= 0:
            self._retry(now_ms)
        if self._in_flight.can_bury:
            self._append(*self._in_flight.dead_letters.pop(), now_ms)
        for stage in self._in_flight.stages:
            head_ms = stage.head_due_ms()
            if head_ms is None or head_ms > now_ms or self._is_stopped(stage):
                continue
            # Each stage gets half of a round, so that neither late nor punctual records wait for all of the other.
            left_bytes = self._in_flight.block_bytes
            while left_bytes > 0 and (popped := stage.pop(now_ms, left_bytes)) is not None:
                block, dues = popped
                assert dues[-1] <= now_ms, f"never early (invariant 1): due at {dues[-1]}, the time is {now_ms}"
                left_bytes -= block.cost
                self._append(block, dues, now_ms)

    def wait_ms(self, now_ms: int) -> int | None:
        """Return how long until the next staged block is due or a failed one is retried; None if there is none."""
        waits: list[int] = []
        for stage in self._in_flight.stages:
            head_ms = stage.head_due_ms()
            if head_ms is not None and not self._is_stopped(stage):
                waits.append(head_ms - now_ms)
        if self._in_flight.can_bury:
            waits.append(0)
        if self._in_flight.kept_back:
            waits.append(self._in_flight.kept_back.wait_ms(now_ms))
        return min(waits, default=None)

    def _is_stopped(self, stage: Stage) -> bool:
        """Whether due records of this stage must wait.

        They wait while the blocks that are kept back use up their limit. Records on time also wait for late ones if too
        many were delivered beyond the marks.
        """
        if self._in_flight.is_blocked:
            return True
        return stage is self._in_flight.live and self._settled.is_full and self._in_flight.has_late

    def _retry(self, now_ms: int) -> None:
        kept_back = self._in_flight.kept_back
        for block, dues in kept_back.pop_all():
            if dues[-1] > now_ms:  # the clock was set back, so it is no longer due
                self._in_flight.live.put(block, dues)
            else:
                self._append(block, dues, now_ms)
        if not kept_back:
            kept_back.end_pause()

    def bury(self, given_up: Undeliverable) -> None:
        """Append skipped Spark timers to the dead letters now.

        If an append fails, the remaining ones are not kept here.
        """
        letters = new_dead_letters(self._store, self._in_flight.stamp, self._in_flight.block_bytes)
        letters.add(given_up)
        while letters:
            block, dues = letters.pop()
            self._store.writer.append_block(block)
            self._settled.deliver(block.entries, dues, is_far=True)
            self._counts.add(block, dues, self._store.writer.last_store_timestamp_ms)
            self._on_delivered(*DEAD_LETTER_QUEUE)

    # Appending a block

    def _append(self, block: Block, dues: Ints, now_ms: int) -> None:
        if block.size > self._store.writer.max_block_bytes and len(block) > 1:
            half = len(block) // 2
            for start, end in ((0, half), (half, len(block))):
                self._append(block.part(start, end), dues[start:end], now_ms)
            return
        if block.level == 0:
            # The last check and the append are one step, so no cancel can come in between (invariant 5).
            cancelled = self._settled.is_cancelled(block.entries)
            if cancelled.any():
                if cancelled.all():
                    return
                block, dues = block.rows(np.flatnonzero(~cancelled)), dues[~cancelled]
        deliverable = self._to_readable(block, dues)
        if deliverable is None:
            return
        block, dues = deliverable
        if self._in_flight.kept_back:
            free = self._in_flight.kept_back.add_blocked(block, dues)
            if not len(free):
                return
            block, dues = block.rows(free), dues[free]
        if len(block.queues) > self._store.writer.max_block_queues and self._append_in_parts(block, dues, now_ms):
            return
        try:
            queues = self._store.writer.append_block(block)
        except StoreError as error:
            self._keep_back(block, dues, now_ms, error)
            return
        if block.level == 0:
            self._settled.deliver(block.entries, dues, is_far=block.is_far)
        self._counts.add(block, dues, self._store.writer.last_store_timestamp_ms)
        for queue in queues:
            self._on_delivered(queue.topic, queue.queue_id)

    def _append_in_parts(self, block: Block, dues: Ints, now_ms: int) -> bool:
        """Append a block in parts if it has more queues than one write allows; False if it does not."""
        rows, most = list(block.rows_by_queue().values()), self._store.writer.max_block_queues
        if len(rows) <= most:
            return False
        for start in range(0, len(rows), most):
            own = np.sort(np.concatenate(rows[start : start + most]))
            self._append(block.rows(own), dues[own], now_ms)
        return True

    def _to_readable(self, block: Block, dues: Ints) -> tuple[Block, Ints] | None:
        """Return the deliverable rows, each for a readable queue. The others become dead letters."""
        moved: dict[int, int] = {}
        reasons: dict[int, str] = {}
        for number, queue in enumerate(block.queues):
            place = queue[1] if queue in OWN_QUEUES else self._place_of(*queue)
            if isinstance(place, str):
                reasons[number] = place
            elif place != queue[1]:
                moved[number] = place
        if block.size > self._store.writer.max_block_bytes:  # a single record, longer than any that admission accepts
            reasons |= dict.fromkeys(range(len(block.queues)), "its record does not fit a segment of the log")
        keep = np.ones(len(block), bool)
        for number, reason in reasons.items():
            own = np.flatnonzero(block.queue_of == number)
            if len(own):
                keep[own] = False
                lost = block.rows(own)
                self._in_flight.dead_letters.add(
                    Undeliverable(block.level, lost.entries, dues[own], lost.data, lost.sizes, reason, block.is_far)
                )
        if not keep.all():
            if not keep.any():
                return None
            block, dues = block.rows(np.flatnonzero(keep)), dues[keep]
        return (block.redirect(moved) if moved else block), dues

    def _keep_back(self, block: Block, dues: Ints, now_ms: int, error: StoreError) -> None:
        """Keep a failed block for a later retry.

        A block for several queues is first split, so that the others need not wait.
        """
        rows = block.rows_by_queue()
        if len(rows) > 1:
            for own in rows.values():
                self._append(block.rows(own), dues[own], now_ms)
            return
        self._in_flight.kept_back.add(block, dues)
        self._in_flight.kept_back.pause(error, now_ms)
