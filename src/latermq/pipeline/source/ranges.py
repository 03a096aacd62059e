"""Which offsets a query reads: the ends of queues, limits over all of them, and the parts that tasks pull."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from latermq.client.session.failures import NoBroker
from latermq.handover.ownership import Ownership
from latermq.pipeline.driver.brokers import QueuePlace
from latermq.pipeline.source.options import EARLIEST, LATEST, Offsets

Bounds = Mapping[QueuePlace, tuple[int, int]]  # first entry of a queue, and the first that is not flushed


@dataclass
class QueuePart(InputPartition):
    """What one task pulls: entries [start, end) of one queue. `ownership` says whose they are, where that is asked."""

    place: QueuePlace
    start: int
    end: int
    ownership: Ownership = field(default_factory=Ownership)


def offset_key(place: QueuePlace) -> str:
    """How a queue is called in the offsets of a stream."""
    return f"{place.broker}/{place.queue_id}"


def check_named(wanted: str | Offsets, places: Sequence[QueuePlace]) -> None:
    """Refuse offsets of a queue that is not there: what was asked for would be answered by half."""
    if isinstance(wanted, str):
        return
    there = {(place.broker, place.queue_id) for place in places}
    for broker, queues in wanted.items():
        for queue_id in queues:
            if (broker, queue_id) not in there:
                raise NoBroker(
                    f"offsets are given for queue {queue_id} of broker {broker!r}, which is not there",
                    hint="Start the broker, or leave the queue out",
                )


def resolve(wanted: str | Offsets, bounds: Bounds) -> dict[QueuePlace, int]:
    """An option's offsets for every queue; those that it does not name are read from their first entry."""
    if wanted == EARLIEST:
        return {place: low for place, (low, _) in bounds.items()}
    if wanted == LATEST:
        return {place: high for place, (_, high) in bounds.items()}
    assert isinstance(wanted, dict)
    return {place: wanted.get(place.broker, {}).get(place.queue_id, low) for place, (low, _) in bounds.items()}


def limited(start: Mapping[str, int], end: Mapping[str, int], max_rows: int) -> dict[str, int]:
    """Ends that are at most so many entries ahead over all queues, shared out by how much each of them holds."""
    backlog = {key: max(0, high - start.get(key, 0)) for key, high in end.items()}
    total = sum(backlog.values())
    if total <= max_rows:
        return dict(end)
    ends = {}
    left_rows, left_backlog = max_rows, total
    for key, rows in backlog.items():
        # What rounding leaves goes to those that come later, so that the sum is exact and something always moves.
        share = -(-rows * left_rows // left_backlog) if left_backlog else 0
        ends[key] = start.get(key, 0) + min(rows, share)
        left_rows -= min(rows, share)
        left_backlog -= rows
    return ends


def parts(
    place: QueuePlace, start: int, end: int, max_rows: int, ownership: Ownership | None = None
) -> list[QueuePart]:
    """A queue's range in parts of equal size, as few as the limit allows."""
    rows = end - start
    if rows <= 0:
        return []
    count = -(-rows // max_rows)
    bounds = [start + rows * index // count for index in range(count + 1)]
    owned = ownership or Ownership()
    return [QueuePart(place, low, high, owned) for low, high in pairwise(bounds)]
