"""Messages in flight at RocketMQ's broker, found in the records of its revive topic.

RocketMQ writes a checkpoint for each pop, and a record for each acknowledgement. What has a checkpoint and no
acknowledgement is in flight. docs/formats/pop-handles.md describes the records.
"""

from collections.abc import Iterator
from typing import NamedTuple

from latermq.config_json.java_json import UnreadableJson, json_decoder
from latermq.config_json.pop_state import AckJson, CheckPointJson
from latermq.group.pop.rows import WINDOW
from latermq.group.pop.table import MAX_VISIBLE_MS

CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"
QueueKey = tuple[str, str, int]  # group, topic that was popped from, queue id

_decode_checkpoint = json_decoder(CheckPointJson)
_decode_ack = json_decoder(AckJson)


class Delivery(NamedTuple):
    """The newest delivery of a message."""

    pop_ms: int
    visible_ms: int
    is_suspended: bool


class HeldRun(NamedTuple):
    """Consecutive messages with the same delivery, at most as many as a row of the in-flight table has."""

    first: int
    mask: int
    delivery: Delivery


class ApacheDeliveries:
    """Collects the records, in any order.

    A message is identified by its queue, offset and pop time. The newest delivery of a message counts: RocketMQ writes
    a new checkpoint and acknowledges the old delivery when the invisible time is changed.
    """

    def __init__(self, now_ms: int) -> None:
        """No message is held longer than its invisible time from now on, even if the clock was ahead."""
        self._now_ms = now_ms
        self._deliveries: dict[QueueKey, dict[int, Delivery]] = {}
        self._acks: dict[tuple[QueueKey, int], set[int]] = {}  # by queue and pop time
        self.unreadable = 0

    def add(self, tag: str, body: bytes, *, with_checkpoints: bool = True) -> None:
        """Add a record. Others, and such without a valid body, are counted."""
        try:
            if tag == CHECKPOINT_TAG:
                if with_checkpoints:
                    self._add_checkpoint(_decode_checkpoint(body))
            elif tag in (ACK_TAG, BATCH_ACK_TAG):
                ack = _decode_ack(body)
                key = (ack.group, ack.topic, ack.queue_id), ack.pop_ms
                self._acks.setdefault(key, set()).update(ack.offsets if tag == BATCH_ACK_TAG else [ack.offset])
            else:
                self.unreadable += 1
        except UnreadableJson:
            self.unreadable += 1

    def _add_checkpoint(self, checkpoint: CheckPointJson) -> None:
        invisible_ms = max(0, checkpoint.invisible_ms)
        visible_ms = min(checkpoint.pop_ms + invisible_ms, self._now_ms + invisible_ms, MAX_VISIBLE_MS)
        delivery = Delivery(checkpoint.pop_ms, max(0, visible_ms), checkpoint.is_suspended)
        known = self._deliveries.setdefault((checkpoint.group, checkpoint.topic, checkpoint.queue_id), {})
        for offset in checkpoint.offsets:
            if offset not in known or known[offset].pop_ms <= delivery.pop_ms:
                known[offset] = delivery

    def queues(self) -> list[QueueKey]:
        """Return the queues with checkpoints."""
        return list(self._deliveries)

    def held(self, key: QueueKey) -> list[tuple[int, Delivery]]:
        """Return the messages of a queue in flight, by offset."""
        none: set[int] = set()
        return [
            (offset, delivery)
            for offset, delivery in sorted(self._deliveries[key].items())
            if offset not in self._acks.get((key, delivery.pop_ms), none)
        ]

    def end(self, key: QueueKey) -> int:
        """Return the offset after the last popped message of a queue."""
        return max(self._deliveries[key], default=-1) + 1


def runs_of(held: list[tuple[int, Delivery]]) -> Iterator[HeldRun]:
    """Divide messages into runs that do not overlap, in order."""
    run: HeldRun | None = None
    for offset, delivery in held:
        if run is not None and delivery == run.delivery and offset - run.first < WINDOW:
            run = run._replace(mask=run.mask | 1 << offset - run.first)
            continue
        if run is not None:
            yield run
        run = HeldRun(offset, 1, delivery)
    if run is not None:
        yield run
