"""POP consumption on a broker's parts, as its handlers use them: every operation is journalled before it counts."""

from dataclasses import dataclass

from latermq.broker.broker import Broker
from latermq.broker.pop.acknowledgements import Place
from latermq.broker.pop.pop_request import PopRequest
from latermq.group.filters import subscription_of
from latermq.group.pop.operations import Changed, Outcome, attempt_hash
from latermq.message.record import Message, decode_records

GROUP = "readers"


@dataclass(frozen=True)
class Held:
    """A popped message and its handle."""

    message: Message
    place: Place

    @property
    def body(self) -> bytes:
        return self.message.body


def pop(
    broker: Broker,
    topic: str = "orders",
    group: str = GROUP,
    *,
    queue_id: int = -1,
    count: int = 32,
    invisible_ms: int = 60_000,
    tags: str = "*",
    attempt: str = "",
    lease: int = 0,
    is_ordered: bool = False,
    from_end: bool = False,
) -> list[Held]:
    config = broker.pops.check_group(group, b"")
    request = PopRequest(
        group,
        topic,
        queue_id,
        count,
        invisible_ms,
        message_filter=broker.filters.of(subscription_of(topic, tags, "TAG")),
        from_end=from_end,
        is_ordered=is_ordered or config.is_ordered,
        attempt=attempt_hash(attempt),
        lease=lease,
    )
    popped = broker.pops.pop(request)
    broker.pop_positions.commit()
    found = []
    for part in popped.parts:
        messages = list(decode_records(b"".join(part.pieces)))
        assert [message.queue_offset for message in messages] == list(part.offsets)
        found += [
            Held(message, Place(group, part.queue.topic, part.queue.queue_id, message.queue_offset, popped.pop_ms))
            for message in messages
        ]
    return found


def ack(broker: Broker, held: Held) -> Outcome:
    outcome = broker.acknowledgements.ack(held.place)
    broker.pop_positions.commit()
    return outcome


def change(broker: Broker, held: Held, invisible_ms: int, *, is_suspended: bool = False) -> Changed:
    changed = broker.acknowledgements.change(held.place, invisible_ms, is_suspended=is_suspended)
    broker.pop_positions.commit()
    return changed


def expire(broker: Broker) -> None:
    """Copy everything that is due, as the driver does."""
    for _ in range(1_000):
        if broker.pop_expiry.run() or broker.pop_expiry.failure:
            return
    raise AssertionError("the expiry does not come to an end")
