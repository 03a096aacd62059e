"""Consumer groups and their configuration."""

from typing import Literal

from msgspec import Struct, field

from latermq.model.data_version import DataVersion

RetryPolicyType = Literal["CUSTOMIZED", "EXPONENTIAL"]


class GroupSubscription(Struct, kw_only=True):
    """A subscription that operators configure for a group. LaterMQ stores it, but uses the ones in heartbeats."""

    topic: str | None = None
    expression_type: str | None = None
    expression: str | None = None
    version: int = 0


class ExponentialRetryPolicy(Struct, kw_only=True):
    """Retry delays that grow exponentially."""

    initial_ms: int = 5_000
    max_ms: int = 7_200_000
    multiplier: int = 2


class CustomizedRetryPolicy(Struct, kw_only=True):
    """A list of retry delays."""

    pauses_ms: list[int] = field(default_factory=list)


class GroupRetryPolicy(Struct, kw_only=True):
    """When RocketMQ's POP consumers receive a failed message again. LaterMQ only stores it."""

    type: RetryPolicyType = "CUSTOMIZED"
    exponential: ExponentialRetryPolicy | None = None
    customized: CustomizedRetryPolicy | None = None


class Group(Struct, kw_only=True):
    """A consumer group and its permissions."""

    name: str
    can_consume: bool = True
    can_consume_from_min: bool = True
    can_broadcast: bool = True
    is_ordered: bool = False
    retry_queues: int = 1
    max_retries: int = 16
    broker_id: int = 0
    slow_consumer_broker_id: int = 1
    notifies_members: bool = True
    system_flags: int = 0
    consume_timeout_minutes: int = 15
    subscriptions: list[GroupSubscription] | None = None
    retry_policy: GroupRetryPolicy = field(default_factory=GroupRetryPolicy)
    attributes: dict[str, str] = field(default_factory=dict)


class GroupTable(Struct, kw_only=True):
    """All consumer groups of a broker, by name."""

    groups: dict[str, Group] = field(default_factory=dict)
    forbidden: dict[str, dict[str, int]] = field(default_factory=dict)
    version: DataVersion = field(default_factory=DataVersion)
