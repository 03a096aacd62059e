"""RocketMQ's JSON format of consumer groups: subscriptionGroup.json and requests about group configurations."""

from typing import Annotated

from msgspec import Meta, Struct, field

from latermq.config_json.java_json import convert, encode_json
from latermq.config_json.numbers import Int32, Int64
from latermq.config_json.topics import DataVersionJson
from latermq.model.group import Group, RetryPolicyType


class GroupSubscriptionJson(Struct, kw_only=True, rename="camel"):
    """SimpleSubscriptionData."""

    topic: str | None = None
    expression_type: str | None = None
    expression: str | None = None
    version: Int64 = 0


class ExponentialRetryPolicyJson(Struct, kw_only=True, rename={"initial_ms": "initial", "max_ms": "max"}):
    """ExponentialRetryPolicy."""

    initial_ms: Int64 = 5_000
    max_ms: Int64 = 7_200_000
    multiplier: Int64 = 2


class CustomizedRetryPolicyJson(Struct, kw_only=True, rename={"pauses_ms": "next"}):
    """CustomizedRetryPolicy."""

    pauses_ms: Annotated[list[Int64], Meta(max_length=64)] = field(default_factory=list)


class GroupRetryPolicyJson(
    Struct,
    kw_only=True,
    omit_defaults=True,
    rename={"exponential": "exponentialRetryPolicy", "customized": "customizedRetryPolicy"},
):
    """GroupRetryPolicy. Policies that are not set are omitted, as in RocketMQ; the type is always written."""

    type: RetryPolicyType = field(default_factory=lambda: "CUSTOMIZED")
    exponential: ExponentialRetryPolicyJson | None = None
    customized: CustomizedRetryPolicyJson | None = None


class GroupJson(
    Struct,
    kw_only=True,
    rename={
        "name": "groupName",
        "can_consume": "consumeEnable",
        "can_consume_from_min": "consumeFromMinEnable",
        "can_broadcast": "consumeBroadcastEnable",
        "is_ordered": "consumeMessageOrderly",
        "retry_queues": "retryQueueNums",
        "max_retries": "retryMaxTimes",
        "broker_id": "brokerId",
        "slow_consumer_broker_id": "whichBrokerWhenConsumeSlowly",
        "notifies_members": "notifyConsumerIdsChangedEnable",
        "system_flags": "groupSysFlag",
        "consume_timeout_minutes": "consumeTimeoutMinute",
        "subscriptions": "subscriptionDataSet",
        "retry_policy": "groupRetryPolicy",
    },
):
    """SubscriptionGroupConfig.

    Every field is typed, and unknown fields are dropped, so that the next start can read what was saved.
    """

    name: str
    can_consume: bool = True
    can_consume_from_min: bool = True
    can_broadcast: bool = True
    is_ordered: bool = False
    retry_queues: Int32 = 1
    max_retries: Int32 = 16
    broker_id: Int64 = 0
    slow_consumer_broker_id: Int64 = 1
    notifies_members: bool = True
    system_flags: Int32 = 0
    consume_timeout_minutes: Int32 = 15
    subscriptions: list[GroupSubscriptionJson] | None = None
    retry_policy: GroupRetryPolicyJson = field(default_factory=GroupRetryPolicyJson)
    attributes: dict[str, str] = field(default_factory=dict)


class GroupTableJson(
    Struct,
    kw_only=True,
    rename={"groups": "subscriptionGroupTable", "forbidden": "forbiddenTable", "version": "dataVersion"},
):
    """subscriptionGroup.json and the body of GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    groups: dict[str, GroupJson] = field(default_factory=dict)
    forbidden: dict[str, dict[str, Int32]] = field(default_factory=dict)
    version: DataVersionJson = field(default_factory=DataVersionJson)


def encode_group(group: Group) -> bytes:
    """Encode a group as JSON."""
    return encode_json(convert(group, GroupJson))
