"""The offsets that a query reads: queue bounds, limits across all queues, and the parts that tasks pull."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from latermq.client.session.failures import NoBroker
from latermq.handover.ownership import Ownership
from latermq.pipeline.driver.brokers import QueuePlace
from latermq.pipeline.source.options import EARLIEST, LATEST, Offsets

Bounds = Mapping[QueuePlace, tuple[int, int]]  # the first entry of a queue, and the first that is not flushed


@dataclass
class QueuePart(InputPartition):
    """The work of one task: entries [start, end) of one queue.

    `ownership` tells near from far, where the timeline needs it.
    """

    place: QueuePlace
    start: int
    end: int
    ownership: Ownership = field(default_factory=Ownership)


def offset_key(place: QueuePlace) -> str:
    """The key of a queue in a stream's offsets."""
    return f"{place.broker}/{place.queue_id}"


def check_queues(wanted: str | Offsets, places: Sequence[QueuePlace]) -> None:
    """Refuse offsets for a queue that does not exist: the answer would be incomplete."""
    if isinstance(wanted, str):
        return
    there = {(place.broker, place.queue_id) for place in places}
    for broker, queues in wanted.items():
        for queue_id in queues:
            if (broker, queue_id) not in there:
                raise NoBroker(
                    f"offsets are given for queue {queue_id} of broker {broker!r}, which does not exist",
                    hint="Start the broker, or leave out the queue",
                )


def resolve(wanted: str | Offsets, bounds: Bounds) -> dict[QueuePlace, int]:
    """The offsets of an option for every queue. Queues that it does not name are read from their first entry."""
    if wanted == EARLIEST:
        return {place: low for place, (low, _) in bounds.items()}
    if wanted == LATEST:
        return {place: high for place, (_, high) in bounds.items()}
    assert isinstance(wanted, dict)
    return {place: wanted.get(place.broker, {}).get(place.queue_id, low) for place, (low, _) in bounds.items()}


def limit_offsets(start: Mapping[str, int], end: Mapping[str, int], max_rows: int) -> dict[str, int]:
    """End offsets that total at most `max_rows` entries, shared among the queues in proportion to their backlog."""
    backlog = {key: max(0, high - start.get(key, 0)) for key, high in end.items()}
    total = sum(backlog.values())
    if total <= max_rows:
        return dict(end)
    ends = {}
    left_rows, left_backlog = max_rows, total
    for key, rows in backlog.items():
        # Carry rounding errors over to the later queues. The total is then exact and at least one queue advances.
        share = -(-rows * left_rows // left_backlog) if left_backlog else 0
        ends[key] = start.get(key, 0) + min(rows, share)
        left_rows -= min(rows, share)
        left_backlog -= rows
    return ends


def parts(
    place: QueuePlace, start: int, end: int, max_rows: int, ownership: Ownership | None = None
) -> list[QueuePart]:
    """Split a queue's range into parts of equal size, as few as `max_rows` allows."""
    rows = end - start
    if rows <= 0:
        return []
    count = -(-rows // max_rows)
    bounds = [start + rows * index // count for index in range(count + 1)]
    owned = ownership or Ownership()
    return [QueuePart(place, low, high, owned) for low, high in pairwise(bounds)]
