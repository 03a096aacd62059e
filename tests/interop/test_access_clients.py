"""RocketMQ's Java clients with AclClientRPCHook: what each may do with the right secret, and that it may do no more.

With LATERMQ_INTEROP_TARGET=apache the same programs run against Apache RocketMQ with its ACL switched on.
"""

import itertools
import time
from collections.abc import Callable, Iterator

import pytest

from latermq.protocol.remoting.codes import Request, Response
from tests.interop.access_scene import CLIENTS, Case, Entry, ask, await_copies, entry
from tests.interop.programs import Json, Program, ProgramError, start_java
from tests.interop.target import ROOT, ROOT_SECRET, Cluster, running_cluster_with_users
from tests.interop.waiting import wait_until

_numbers = itertools.count()
NewUser = Callable[..., dict[str, str]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster_with_users(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def java(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Without other credentials, it is the super user."""
    defaults = {"namesrv": cluster.namesrv, "user": ROOT, "secret": ROOT_SECRET}
    with start_java(tmp_path_factory.mktemp("java") / "java.log", defaults) as program:
        yield program


def administer(java: Program, cluster: Cluster, code: Request, fields: dict[str, object], body: object = None) -> None:
    [answer] = ask(java, cluster, CLIENTS["super user"], [Case("", code, fields, body).as_json()])
    assert answer["code"] == Response.SUCCESS, answer


@pytest.fixture
def new_user(java: Program, cluster: Cluster) -> NewUser:
    """Creates a user with these entries, and returns its credentials."""

    def create(*entries: list[Entry]) -> dict[str, str]:
        name = f"user{next(_numbers)}"
        administer(java, cluster, Request.AUTH_CREATE_USER, {"username": name}, {"password": f"{name}-secret"})
        policies = [{"policyType": "Custom", "entries": [one for some in entries for one in some]}]
        if entries:
            acl = {"subject": f"User:{name}", "policies": policies}
            administer(java, cluster, Request.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, acl)
        await_copies(java, cluster)
        return {"user": name, "secret": f"{name}-secret"}

    return create


@pytest.fixture
def producer(new_user: NewUser, topic: str) -> dict[str, str]:
    return new_user(entry(f"Topic:{topic}", "Pub"))


@pytest.fixture
def consumer(new_user: NewUser, topic: str, group: str) -> dict[str, str]:
    return new_user(entry(f"Topic:{topic} Group:{group}", "Sub"))


# A client that may not look up the route of a topic does not get as far as a broker. One that has failed before, or
# whose neighbours have, is slowed down, and may give up before it is told why.
SLOWED = (
    "No route info of this topic",
    "The broker service address not found",
    "call timeout",
    "send request to",
    "wait response on the channel",
)
ANY_REASON = "check signature failed. has no permission is not found. is disabled."


def refusal(java: Program, command: str, **arguments: object) -> str:
    """The error of a command that must be refused."""
    with pytest.raises(ProgramError) as caught:
        java.call(command, **arguments)
    return reason(caught.value)


def reason(error: ProgramError) -> str:
    if error.code != Response.NO_PERMISSION and any(sign in str(error) for sign in SLOWED):
        return ANY_REASON
    assert error.code == Response.NO_PERMISSION, error
    return str(error)


def stored(java: Program, topic: str) -> int:
    queues: list[Json] = java.call("queues", topic=topic)["queues"]
    return sum(queue["max"] for queue in queues)


def test_a_producer_sends_to_its_topic_only(java: Program, topic: str, producer: dict[str, str]) -> None:
    for mode, count in (("sync", 3), ("async", 3), ("batch", 3), ("selector", 4)):
        java.call("send", topic=topic, mode=mode, count=count, **producer)
    java.call("send", topic=topic, mode="oneway", **producer)
    wait_until(lambda: stored(java, topic) == 14, 20, "all messages are stored")
    assert "has no permission" in refusal(java, "send", topic="TBW102", **producer)
    assert stored(java, topic) == 14


def test_a_wrong_secret_an_unknown_and_a_disabled_user_are_told_apart(
    java: Program, cluster: Cluster, topic: str, producer: dict[str, str]
) -> None:
    java.call("send", topic=topic, **producer)
    wrong = {**producer, "secret": "guessed"}
    assert "check signature failed." in refusal(java, "send", topic=topic, **wrong)
    unknown = {"user": "ghost", "secret": "boo"}
    assert "is not found." in refusal(java, "send", topic=topic, **unknown)
    name = producer["user"]
    administer(java, cluster, Request.AUTH_UPDATE_USER, {"username": name}, {"userStatus": "disable"})
    # Apache's broker may still have the user in its cache.
    wait_until(lambda: _is_refused(java, topic, producer, "is disabled."), 20, "a disabled user is refused")


def _is_refused(java: Program, topic: str, credentials: dict[str, str], remark: str) -> bool:
    try:
        java.call("send", topic=topic, **credentials)
    except ProgramError as error:
        return remark in reason(error)
    return False


@pytest.mark.parametrize("kind", ["push", "pop", "orderly"])
def test_a_consumer_consumes_its_topic_with_its_group_only(
    java: Program, topic: str, group: str, producer: dict[str, str], consumer: dict[str, str], kind: str
) -> None:
    java.call("send", topic=topic, count=6, **producer)
    options: Json = {"push": {}, "pop": {"server_rebalance": True}, "orderly": {"orderly": True}}[kind]
    if kind == "pop":
        java.call("set_mode", topic=topic, group=group, mode="POP")
    begun_s = time.monotonic()
    strangers = {"wrong": {**consumer, "secret": "guessed"}, "producer": producer}
    for number, credentials in enumerate(strangers.values()):
        java.call("start_consumer", name=f"{group}-{number}", topic=topic, group=group, **options, **credentials)
    java.call("start_consumer", name=group, topic=topic, group=group, **options, **consumer)
    messages = java.messages(group, count=6, timeout_s=60)
    assert sorted(one["body"] for one in messages) == [f"m-{number}" for number in range(6)]
    # The others have had as long.
    time.sleep(min(3.0, time.monotonic() - begun_s))
    for number in range(len(strangers)):
        assert java.messages(f"{group}-{number}") == []
        java.call("stop_consumer", name=f"{group}-{number}")
    java.call("stop_consumer", name=group)


def test_a_failed_message_comes_again_through_the_retry_topic(
    java: Program, topic: str, group: str, producer: dict[str, str], consumer: dict[str, str]
) -> None:
    java.call("send", topic=topic, **producer)
    java.call("start_consumer", name=group, topic=topic, group=group, failures=1, delay_level=1, **consumer)
    first, second = java.messages(group, count=2, timeout_s=60)
    assert (first["reconsumed"], second["reconsumed"]) == (0, 1)
    java.call("stop_consumer", name=group)


def test_a_lite_pull_consumer_needs_topic_and_group(
    java: Program, topic: str, group: str, producer: dict[str, str], consumer: dict[str, str]
) -> None:
    java.call("send", topic=topic, count=3, **producer)
    pulled = java.call("lite_pull", topic=topic, group=group, count=3, **consumer)
    assert len(pulled["messages"]) == 3
    for credentials in (producer, {**consumer, "secret": "guessed"}):
        with pytest.raises(ProgramError):
            java.call("lite_pull", topic=topic, group=group, count=1, timeout_s=2, **credentials)


def test_a_transaction_is_committed_and_rolled_back_by_a_producer_with_a_right(
    java: Program, topic: str, group: str, producer: dict[str, str], consumer: dict[str, str]
) -> None:
    java.call("send_in_transaction", topic=topic, group=group, local="ROLLBACK_MESSAGE", **producer)
    java.call("send_in_transaction", topic=topic, group=group, **producer)
    wait_until(lambda: stored(java, topic) == 1, 20, "the transaction is committed")
    for credentials in (consumer, {**producer, "secret": "guessed"}):
        refusal(java, "send_in_transaction", topic=topic, group=group, **credentials)
    assert stored(java, topic) == 1


def test_a_delayed_message_is_recalled_by_a_user_with_a_right(
    java: Program, topic: str, producer: dict[str, str], consumer: dict[str, str]
) -> None:
    sent = java.call("send", topic=topic, timers=[{"way": "sec", "in_ms": 3_600_000}], **producer)["results"][0]
    handle = sent["recall_handle"]
    for credentials in (consumer, {**producer, "secret": "guessed"}):
        refusal(java, "recall", topic=topic, handle=handle, **credentials)
    assert java.call("recall", topic=topic, handle=handle, **producer)["msg_id"] == sent["msg_id"]


def test_addresses_prefixes_and_denials_decide_for_real_clients(java: Program, topic: str, new_user: NewUser) -> None:
    allowed = [
        new_user(entry(f"Topic:{topic}", "Pub", sources="127.0.0.0/8")),
        new_user(entry(f"Topic:{topic[:3]}*", "Pub")),
        new_user(entry(f"Topic:{topic[:3]}*", "Pub", "Deny"), entry(f"Topic:{topic}", "Pub")),
    ]
    refused = [
        new_user(entry(f"Topic:{topic}", "Pub", sources="10.0.0.0/8")),
        new_user(entry("Topic:other*", "Pub")),
        new_user(entry("Topic:*", "Pub"), entry(f"Topic:{topic}", "Pub", "Deny")),
        new_user(),
    ]
    for credentials in allowed:
        java.call("send", topic=topic, **credentials)
    for credentials in refused:
        refusal(java, "send", topic=topic, **credentials)
    assert stored(java, topic) == len(allowed)
