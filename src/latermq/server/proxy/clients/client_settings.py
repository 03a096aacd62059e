"""Settings of clients: what they publish or subscribe to, and the answer with what the server decides."""

from collections.abc import Iterator
from typing import NamedTuple

from latermq.config import Config, Duration
from latermq.group.retry_backoff import RETRY_LEVELS, parse_backoff
from latermq.model.group import ExponentialRetryPolicy, Group
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.checked_names import check_group_name, check_topic_name
from latermq.protocol.messaging.refusals import CallRefused
from latermq.protocol.messaging.resources import full_name
from latermq.server.remoting.access import PUB, SUB, Access, Kind, topic_access

RECEIVE_BATCH = 32
ENTRY_BYTES = 200  # memory of a topic's name and its places in tables
PRODUCER_ATTEMPTS = 3
_MAX_STEPS = 64  # of a back-off
_MAX_RETRIES = (1 << 31) - 2  # clients read the number of attempts as 32 bits
# Limits of lite topics, as RocketMQ states them. There are no lite topics here.
_LITE_SUBSCRIPTIONS, _LITE_TOPIC_CHARS = 2000, 64
_LITE_TYPES = (pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER)


class Role(NamedTuple):
    """What a client does."""

    group: str  # of a consumer; empty for a producer
    topics: tuple[str, ...]  # that it publishes, or subscribes to
    language: str
    size_bytes: int  # memory that the registry uses for it


def role_of(settings: pb.Settings, max_bytes: int) -> Role:
    """Return the role of a client. Raises CallRefused if its settings are not valid."""
    kind = settings.WhichOneof("pub_sub")
    if kind is None:
        raise CallRefused(
            pb.UNRECOGNIZED_CLIENT_TYPE, "the settings say neither what to publish nor what to subscribe to"
        )
    if settings.client_type in _LITE_TYPES:
        raise CallRefused(pb.UNSUPPORTED, "lite topics are not supported", hint="Use a push or simple consumer")
    is_producer = kind == "publishing"
    group = "" if is_producer else full_name(settings.subscription.group)
    if not is_producer:
        check_group_name(group)
    # Counted before any is looked at, which takes 4 µs: a hundred thousand fit into the largest settings.
    count = len(settings.publishing.topics) if is_producer else len(settings.subscription.subscriptions)
    size_bytes = settings.ByteSize() + count * ENTRY_BYTES
    if size_bytes > max_bytes:
        raise CallRefused(
            pb.PAYLOAD_TOO_LARGE,
            f"the settings with {count} topics take {size_bytes} bytes; the limit is {max_bytes}",
            hint="Use fewer topics per client, or raise proxy.max_settings",
        )
    entries = settings.publishing.topics if is_producer else [one.topic for one in settings.subscription.subscriptions]
    topics = tuple(dict.fromkeys(map(full_name, entries)))
    for topic in topics:
        check_topic_name(topic)
    return Role(group, topics, _language(settings.user_agent.language), size_bytes)


def accesses_of(role: Role) -> Iterator[Access]:
    """Yield the resources that a client with this role touches."""
    if role.group:
        yield Access(Kind.GROUP, role.group, (SUB,))
    for topic in role.topics:
        yield topic_access(topic, (SUB,) if role.group else (PUB,))


class SettingsAnswers:
    """Completes the settings of clients."""

    def __init__(self, config: Config) -> None:
        self._max_body_bytes = int(config.broker.max_message)
        self._poll_ms = int(config.proxy.poll_timeout)
        self._levels_ms = [int(Duration.parse(level)) for level in config.timer.levels.split()]

    def for_producer(self, settings: pb.Settings) -> pb.Settings:
        """Return a producer's settings with the server's decisions."""
        policy = settings.backoff_policy
        policy.Clear()
        policy.max_attempts = PRODUCER_ATTEMPTS
        _set_exponential(policy, 10, 1_000, 2)
        settings.publishing.max_body_size = self._max_body_bytes
        settings.publishing.validate_message_type = True
        settings.metric.on = False
        return settings

    def for_consumer(self, settings: pb.Settings, group: Group) -> pb.Settings:
        """Return a consumer's settings with the configuration of its group."""
        subscription = settings.subscription
        subscription.fifo = group.is_ordered
        subscription.receive_batch_size = RECEIVE_BATCH
        subscription.long_polling_timeout.FromMilliseconds(self._poll_ms)
        subscription.lite_subscription_quota = _LITE_SUBSCRIPTIONS
        subscription.max_lite_topic_size = _LITE_TOPIC_CHARS
        self._set_policy(settings.backoff_policy, group, settings.user_agent.language)
        settings.metric.on = False
        return settings

    def _set_policy(self, policy: pb.RetryPolicy, group: Group, language: int) -> None:
        """Write the group's back-off in the form that the client reads.

        The Python client knows lists alone and takes 1 s for anything else. The Node client ignores lists.
        """
        policy.Clear()
        policy.max_attempts = max(1, min(group.max_retries, _MAX_RETRIES) + 1)
        if group.retry_policy.type == "EXPONENTIAL" and RETRY_LEVELS not in group.attributes:
            growth = group.retry_policy.exponential or ExponentialRetryPolicy()
            if language == pb.PYTHON:
                _set_steps(policy, _steps_of(growth, policy.max_attempts))
            else:
                _set_exponential(policy, growth.initial_ms, growth.max_ms, growth.multiplier)
            return
        steps_ms = self._steps_ms(group)
        if language == pb.NODE_JS:
            # Whole seconds: the client reads no fractions.
            _set_exponential(policy, max(1_000, steps_ms[0]), max(1_000, *steps_ms), 2)
        else:
            _set_steps(policy, steps_ms)

    def _steps_ms(self, group: Group) -> list[int]:
        own = group.attributes.get(RETRY_LEVELS)
        if own is not None:
            levels = self._levels_ms
            return [
                levels[min(int(step), len(levels)) - 1] if step.isdigit() else int(Duration.parse(step))
                for step in parse_backoff(own)
            ]
        customized = group.retry_policy.customized
        return (customized.pauses_ms if customized is not None else []) or self._levels_ms


def _set_exponential(policy: pb.RetryPolicy, initial_ms: int, max_ms: int, multiplier: float) -> None:
    policy.exponential_backoff.initial.FromMilliseconds(initial_ms)
    policy.exponential_backoff.max.FromMilliseconds(max_ms)
    policy.exponential_backoff.multiplier = multiplier


def _set_steps(policy: pb.RetryPolicy, steps_ms: list[int]) -> None:
    for step_ms in steps_ms[:_MAX_STEPS]:
        policy.customized_backoff.next.add().FromMilliseconds(step_ms)


def _steps_of(growth: ExponentialRetryPolicy, count: int) -> list[int]:
    steps_ms = []
    step_ms = growth.initial_ms
    for _ in range(min(count, _MAX_STEPS)):
        steps_ms.append(min(step_ms, growth.max_ms))
        step_ms = min(step_ms * max(1, growth.multiplier), growth.max_ms)
    return steps_ms


def _language(number: int) -> str:
    """Return the name of a language that clients send, which may be newer than this program."""
    try:
        return pb.Language.Name(number)
    except ValueError:
        return "OTHER"
