"""Settings of clients: what the server decides, and in which form each client understands it."""

import tracemalloc

import pytest

from latermq.config import Config
from latermq.model.group import CustomizedRetryPolicy, ExponentialRetryPolicy, Group, GroupRetryPolicy
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.refusals import CallRefused
from latermq.server.proxy.clients.client_settings import SettingsAnswers, role_of

MAX_BYTES = 256 * 1024
DEFAULT_STEPS_S = [
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
]  # fmt: skip
ANSWERS = SettingsAnswers(Config())


def consumer(language: pb.Language = pb.JAVA, *topics: str, group: str = "g") -> pb.Settings:
    entries = [pb.SubscriptionEntry(topic=pb.Resource(name=topic)) for topic in topics]
    return pb.Settings(
        client_type=pb.PUSH_CONSUMER,
        subscription=pb.Subscription(group=pb.Resource(name=group), subscriptions=entries),
        user_agent=pb.UA(language=language, version="5.0"),
    )


def producer(*topics: str) -> pb.Settings:
    return pb.Settings(
        client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[pb.Resource(name=topic) for topic in topics])
    )


def test_a_producer_gets_the_largest_body_and_its_back_off() -> None:
    settings = ANSWERS.for_producer(producer("t"))
    assert [topic.name for topic in settings.publishing.topics] == ["t"]
    assert settings.publishing.max_body_size == 4 * 1024 * 1024
    assert settings.publishing.validate_message_type
    policy = settings.backoff_policy
    assert (policy.max_attempts, policy.WhichOneof("strategy")) == (3, "exponential_backoff")
    growth = policy.exponential_backoff
    assert (growth.initial.ToMilliseconds(), growth.max.ToMilliseconds(), growth.multiplier) == (10, 1000, 2)


def test_a_consumer_gets_the_configuration_of_its_group() -> None:
    settings = ANSWERS.for_consumer(consumer(pb.JAVA, "t"), Group(name="g", is_ordered=True, max_retries=3))
    subscription = settings.subscription
    assert (subscription.fifo, subscription.receive_batch_size) == (True, 32)
    assert subscription.long_polling_timeout.ToSeconds() == 20
    assert settings.backoff_policy.max_attempts == 4
    assert [step.ToSeconds() for step in settings.backoff_policy.customized_backoff.next] == DEFAULT_STEPS_S
    assert settings.HasField("metric")
    assert not settings.metric.on


@pytest.mark.parametrize("part", ["publishing", "subscription"])
def test_too_many_topics_are_refused_before_any_is_looked_at(part: str) -> None:
    settings = pb.Settings(client_type=pb.PRODUCER, subscription=pb.Subscription(group=pb.Resource(name="g")))
    if part == "publishing":
        settings = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing.FromString(b"\x0a\x00" * 100_000))
    else:
        settings.subscription.MergeFromString(b"\x12\x00" * 100_000)
    tracemalloc.start()
    try:
        with pytest.raises(CallRefused, match="100000 topics"):
            role_of(settings, MAX_BYTES)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1_000_000  # 100,000 objects would take ten times as much


@pytest.mark.parametrize("language", [pb.JAVA, pb.PYTHON, pb.NODE_JS])
@pytest.mark.parametrize(("retries", "attempts"), [(2**31 - 1, 2**31 - 1), (2**31 - 2, 2**31 - 1), (-1, 1)])
def test_a_group_may_retry_as_often_as_a_number_says(language: pb.Language, retries: int, attempts: int) -> None:
    settings = ANSWERS.for_consumer(consumer(language), Group(name="g", max_retries=retries))
    assert settings.backoff_policy.max_attempts == attempts


@pytest.mark.parametrize("language", [pb.JAVA, pb.GOLANG, pb.PYTHON, pb.RUST])
def test_the_steps_of_a_group_are_sent_as_they_are(language: pb.Language) -> None:
    policy = GroupRetryPolicy(type="CUSTOMIZED", customized=CustomizedRetryPolicy(pauses_ms=[2_000, 3_000]))
    settings = ANSWERS.for_consumer(consumer(language), Group(name="g", retry_policy=policy))
    assert [step.ToSeconds() for step in settings.backoff_policy.customized_backoff.next] == [2, 3]


def test_nodes_client_gets_an_exponential_back_off_because_it_ignores_steps() -> None:
    growth = ANSWERS.for_consumer(consumer(pb.NODE_JS), Group(name="g")).backoff_policy.exponential_backoff
    assert (growth.initial.seconds, growth.max.seconds, growth.multiplier) == (1, 7200, 2)


def test_pythons_client_gets_steps_because_it_takes_1_s_for_an_exponential_back_off() -> None:
    growth = ExponentialRetryPolicy(initial_ms=5_000, max_ms=60_000, multiplier=2)
    group = Group(name="g", max_retries=5, retry_policy=GroupRetryPolicy(type="EXPONENTIAL", exponential=growth))
    policy = ANSWERS.for_consumer(consumer(pb.PYTHON), group).backoff_policy
    assert [step.seconds for step in policy.customized_backoff.next] == [5, 10, 20, 40, 60, 60]
    policy = ANSWERS.for_consumer(consumer(pb.JAVA), group).backoff_policy
    assert policy.exponential_backoff.initial.seconds == 5


def test_the_list_of_levels_and_durations_of_a_group_wins() -> None:
    group = Group(name="g", attributes={"retry.levels": "3 90s"})
    policy = ANSWERS.for_consumer(consumer(), group).backoff_policy
    assert [step.seconds for step in policy.customized_backoff.next] == [10, 90]


def test_names_get_their_namespace() -> None:
    settings = consumer(pb.JAVA, "t")
    settings.subscription.group.resource_namespace = "ns"
    settings.subscription.subscriptions[0].topic.resource_namespace = "ns"
    role = role_of(settings, MAX_BYTES)
    assert (role.group, role.topics, role.language) == ("ns%g", ("ns%t",), "JAVA")


def test_a_language_that_is_not_known_yet_is_accepted() -> None:
    settings = consumer()
    settings.user_agent.language = 99  # type: ignore[assignment]
    assert role_of(settings, MAX_BYTES).language == "OTHER"


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (pb.Settings(client_type=pb.PRODUCER), pb.UNRECOGNIZED_CLIENT_TYPE),
        (consumer(group=""), pb.ILLEGAL_CONSUMER_GROUP),
        (consumer(group="a b"), pb.ILLEGAL_CONSUMER_GROUP),
        (consumer(pb.JAVA, "a b"), pb.ILLEGAL_TOPIC),
        (producer("a b"), pb.ILLEGAL_TOPIC),
        (producer(*("t" * 100 for _ in range(2000))), pb.PAYLOAD_TOO_LARGE),
        (pb.Settings(client_type=pb.LITE_PUSH_CONSUMER, subscription=pb.Subscription()), pb.UNSUPPORTED),
    ],
)
def test_settings_that_are_not_valid_are_refused(settings: pb.Settings, code: pb.Code) -> None:
    with pytest.raises(CallRefused) as caught:
        role_of(settings, MAX_BYTES)
    assert caught.value.status_code == code
