"""The official clients of the 5.x protocol with credentials: what each may do with the right secret, and no more."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.remoting.codes import Request, Response
from tests.interop.access_scene import Entry, entry
from tests.interop.clients5 import Client5
from tests.interop.programs import ProgramError
from tests.interop.target import IS_APACHE, ROOT, ROOT_SECRET, Cluster, running_cluster_with_users
from tests.interop.waiting import wait_until
from tests.security.attacker import attacking
from tests.support.grpc_client import grpc_client
from tests.support.signed_requests import signed

pytestmark = pytest.mark.skipif(IS_APACHE, reason="Apache's proxy is not set up with users here")
Credentials = dict[str, str]
NewUser = Callable[..., Credentials]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster_with_users(tmp_path_factory.mktemp("cluster"), proxy=True) as running:
        yield running


def administer(cluster: Cluster, code: Request, fields: dict[str, str], body: object = None) -> bytes:
    """Send a request to the broker as the super user."""
    data = b"" if body is None else msgspec.json.encode(body)
    with attacking(int(cluster.address.rpartition(":")[2])) as root:
        reply = root.call(code, signed(ROOT, fields, data, ROOT_SECRET), data)
    assert reply.code == Response.SUCCESS, reply.remark
    return reply.body


def await_copy(cluster: Cluster, user: str, secret: str) -> None:
    """Wait until the proxy knows the policies of a user. It copies them all at once."""
    marker = f"marker-of-{user}"
    administer(cluster, Request.AUTH_CREATE_USER, {"username": marker}, {"password": secret})
    with grpc_client(cluster.endpoints) as client:
        client.user, client.secret = marker, secret

        def is_known() -> bool:
            time.sleep(0.1)  # each call that comes too early is a failed attempt
            return "has no permission" in client.route("orders").status.message

        wait_until(is_known, 30, "the proxy has copied the users")


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic of this test alone."""
    name = f"topic{next(_numbers)}"
    config = {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": "+message.type=MIXED",
    }  # fmt: skip
    administer(cluster, Request.UPDATE_AND_CREATE_TOPIC, config)
    return name


@pytest.fixture
def new_user(cluster: Cluster) -> NewUser:
    """Creates a user with these entries, and returns its credentials."""

    def create(*entries: list[Entry]) -> Credentials:
        name = f"user{next(_numbers)}"
        administer(cluster, Request.AUTH_CREATE_USER, {"username": name}, {"password": f"{name}-secret"})
        policies = [{"policyType": "Custom", "entries": [one for some in entries for one in some]}]
        administer(cluster, Request.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, {"policies": policies})
        await_copy(cluster, name, f"{name}-secret")
        return {"user": name, "secret": f"{name}-secret"}

    return create


@pytest.fixture
def producer(new_user: NewUser, topic: str) -> Credentials:
    return new_user(entry(f"Topic:{topic}", "Pub"))


@pytest.fixture
def consumer(new_user: NewUser, topic: str, group: str) -> Credentials:
    return new_user(entry(f"Topic:{topic} Group:{group}", "Sub"))


def send(client: Client5, topic: str, body: str, credentials: Credentials) -> None:
    """Start a producer and send one message."""
    name = f"producer{next(_numbers)}"
    client.program.call("start_producer", name=name, topics=[topic], **credentials)
    try:
        client.program.call("send", producer=name, topic=topic, body=body)
    finally:
        with contextlib.suppress(ProgramError):  # a goodbye without a right
            client.stop(name)


def receive(client: Client5, topic: str, group: str, credentials: Credentials) -> list[str]:
    """Start a simple consumer, and take what it receives first."""
    name = f"simple{next(_numbers)}"
    client.program.call("start_simple", name=name, group=group, topic=topic, await_s=5, **credentials)
    try:
        messages = wait_until(lambda: client.receive_once(name), 30, "messages are received")
        client.ack(name, *messages)
        return [message["body"] for message in messages]
    finally:
        with contextlib.suppress(ProgramError):
            client.stop(name)


def stored(cluster: Cluster, topic: str) -> int:
    body = administer(cluster, Request.GET_TOPIC_STATS_INFO, {"topic": topic})
    return body.count(b'"maxOffset":1')


def assert_refused(call: Callable[[], object]) -> str:
    """What the client says. Some clients have the code of the first answer, others only a text."""
    with pytest.raises(ProgramError) as caught:
        call()
    assert caught.value.code in (pb.UNAUTHORIZED, -1), caught.value
    return str(caught.value)


def says_why(client: Client5, said: str) -> bool:
    """Whether the error has the proxy's reason. The Java client writes it to its log instead."""
    return client.language == "java" or "has no permission to access" in said


def test_a_client_with_rights_sends_and_receives(
    client5: Client5, topic: str, group: str, producer: Credentials, consumer: Credentials
) -> None:
    send(client5, topic, "hello", producer)
    assert receive(client5, topic, group, consumer) == ["hello"]


def test_a_wrong_secret_and_a_missing_right_are_refused(
    client5: Client5,
    cluster: Cluster,
    topic: str,
    group: str,
    producer: Credentials,
    consumer: Credentials,
    new_user: NewUser,
) -> None:
    elsewhere = new_user(entry("Topic:elsewhere Group:elsewhere"))
    # The user of the consumer may see the route, so only the telemetry stream is refused, and sends.
    said = assert_refused(lambda: send(client5, topic, "stolen", consumer))
    assert says_why(client5, said)
    for credentials in (elsewhere, {**producer, "secret": "guessed"}, {}):
        assert_refused(lambda given=credentials: send(client5, topic, "stolen", given))  # type: ignore[misc]
    assert stored(cluster, topic) == 0
    send(client5, topic, "hello", producer)
    assert stored(cluster, topic) == 1
    said = assert_refused(lambda: receive(client5, topic, group, producer))
    assert says_why(client5, said)
    for credentials in (elsewhere, {**consumer, "secret": "guessed"}, {}):
        assert_refused(lambda given=credentials: receive(client5, topic, group, given))  # type: ignore[misc]
    assert receive(client5, topic, group, consumer) == ["hello"]
