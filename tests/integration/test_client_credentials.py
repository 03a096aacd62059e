"""The SDK with users: every request is signed, and a refusal says what to do."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from latermq.client import Admin, Credentials, OutgoingMessage, Producer, PullConsumer, Verdict, blocking
from latermq.client.session.failures import AccessRefused
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.queues import MessageQueue
from tests.interop.waiting import wait_until
from tests.support.serving import Server, serving

ROOT = Credentials("root", "r00t")
ALICE = Credentials("alice", "s3cret")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = ("access.enabled=true", "access.init_user=root:r00t")
    options = [word for setting in settings for word in ("--set", setting)]
    with serving(tmp_path_factory.mktemp("users"), "--no-pipeline", "--no-grpc", "--no-http", *options) as running:
        with blocking.Admin(running.namesrv, credentials=ROOT) as admin:
            wait_until(admin.brokers, 60, "the broker is registered")
            admin.create_topic("orders", queues=1)
            admin.create_topic("bills", queues=1)
        asyncio.run(create_alice(running))
        yield running


async def create_alice(server: Server) -> None:
    await create_user(server, "alice")


async def create_user(server: Server, name: str) -> None:
    entries = [
        {"resource": "Topic:orders", "actions": ["Pub", "Sub"], "decision": "Allow"},
        {"resource": "Group:readers", "actions": ["Sub"], "decision": "Allow"},
    ]
    async with Admin(server.namesrv, credentials=ROOT) as admin:
        body = msgspec.json.encode({"password": "s3cret"})
        await admin._call(server.broker, Request.AUTH_CREATE_USER, {"username": name}, body)
        body = msgspec.json.encode({"policies": [{"policyType": "Custom", "entries": entries}]})
        await admin._call(server.broker, Request.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, body)


@pytest.mark.parametrize("encoding", ["json", "rocketmq"])
def test_every_kind_of_send_is_signed(server: Server, encoding: str) -> None:
    async def scenario() -> None:
        async with Producer(server.namesrv, encoding=encoding, credentials=ALICE) as producer:
            first = await producer.send(OutgoingMessage("orders", b"one", tag="größe", keys=["k"]))
            [second] = await asyncio.gather(producer.submit(OutgoingMessage("orders", b"z" * 10_000)))
            batch = [OutgoingMessage("orders", b"%d" % number) for number in range(3)]
            third = await producer.send_batch(batch)
            await producer.send_oneway(OutgoingMessage("orders", b"oneway"))
            timer = await producer.schedule("orders", b"later", delay="1h", key="order-1")
            assert (await timer.cancel()).verdict is Verdict.CANCELLED
            queue = first.queue
            assert (second.queue_offset, third.queue_offset) == (first.queue_offset + 1, first.queue_offset + 2)
        async with PullConsumer(server.namesrv, group="readers", encoding=encoding, credentials=ALICE) as consumer:
            found = await consumer.pull(queue, first.queue_offset, max_messages=32)
            assert [message.body for message in found.messages[:1]] == [b"one"]
            await consumer.commit(queue, found.next_offset)

    asyncio.run(scenario())


def test_a_right_that_was_just_given_counts_at_the_name_server_too(server: Server) -> None:
    async def scenario() -> None:
        for number in range(20):
            await create_user(server, f"newcomer-{number}")
            async with Producer(server.namesrv, credentials=Credentials(f"newcomer-{number}", "s3cret")) as producer:
                await producer.send(OutgoingMessage("orders", b"x"))

    asyncio.run(scenario())


def refused(server: Server, topic: str, credentials: Credentials | bool) -> AccessRefused:
    with blocking.Producer(server.namesrv, credentials=credentials) as producer, pytest.raises(AccessRefused) as caught:
        producer.send(OutgoingMessage(topic, b"x"))
    return caught.value


def test_a_refusal_says_what_to_do_and_is_not_repeated(server: Server) -> None:
    assert "LATERMQ_USER" in refused(server, "orders", False).hint
    assert "Check the secret" in refused(server, "orders", Credentials("alice", "guess")).hint
    error = refused(server, "bills", ALICE)
    assert error.message == ("User:alice has no permission to access Topic:bills from 127.0.0.1, no matched policies")
    assert "latermq acl" in error.hint

    async def count_attempts() -> int:
        async with Producer(server.namesrv, credentials=ALICE) as producer:
            with pytest.raises(AccessRefused):
                await producer.send(OutgoingMessage("bills", b"x"))
            return producer.statistics()["retried"]

    assert asyncio.run(count_attempts()) == 0


def test_the_environment_is_enough(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("s3cret\n")
    path.chmod(0o600)
    monkeypatch.setenv("LATERMQ_USER", "alice")
    monkeypatch.setenv("LATERMQ_SECRET_FILE", str(path))
    with blocking.Producer(server.namesrv) as producer:
        assert producer.send(OutgoingMessage("orders", b"x")).queue == MessageQueue("orders", "broker-a", 0)
