"""Heartbeats, which clients send periodically."""

from msgspec import Struct, field

from latermq.model.subscription import Subscription


class Consumer(Struct, kw_only=True):
    """A client as a member of a consumer group."""

    group: str
    consume_type: str | None = None
    message_model: str | None = None
    consume_from: str | None = None
    subscriptions: list[Subscription] = field(default_factory=list)


class Heartbeat(Struct, kw_only=True):
    """A client's id and its groups."""

    client_id: str
    producer_groups: list[str] = field(default_factory=list)
    consumers: list[Consumer] = field(default_factory=list)
