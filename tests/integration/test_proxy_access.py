"""A proxy that checks users, in a whole server: sends, telemetry streams, and rights that change meanwhile."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import msgspec
import pytest

from latermq.cli import main
from latermq.client import Admin, Credentials
from latermq.clock import SystemClock
from latermq.config import load_config
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.remoting.codes import Request
from latermq.server.proxy.process import ProxyProcess
from tests.interop.waiting import wait_until
from tests.support.grpc_client import GrpcClient, TelemetryStream, grpc_client
from tests.support.proxy_messages import new_message
from tests.support.serving import Server, serving

ROOT = Credentials("root", "r00t")
USERS = ("access.enabled=true", "access.init_user=root:r00t", "access.copy_every=100ms", "audit.flush_every=1s")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("users")


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[Server]:
    options = [word for setting in USERS for word in ("--set", setting)]
    with serving(data, *options, grpc=True) as running:
        administer(running, Request.AUTH_CREATE_USER, {"username": "alice"}, {"password": "s3cret"})
        permit(running, "Allow")
        with client_of(running) as client:
            wait_until(lambda: client.route("orders").status.code != pb.UNAUTHORIZED, 30, "the copy of the users")
        yield running


def administer(server: Server, code: int, fields: dict[str, str], body: object) -> None:
    async def call() -> None:
        async with Admin(server.namesrv, credentials=ROOT) as admin:
            await admin._call(server.broker, code, fields, msgspec.json.encode(body))

    asyncio.run(call())


def permit(server: Server, decision: str) -> None:
    """Allow or deny alice to send to topic `orders`."""
    entry = {"resource": "Topic:orders", "actions": ["Pub"], "decision": decision}
    policies = {"policies": [{"policyType": "Custom", "entries": [entry]}]}
    administer(server, Request.AUTH_CREATE_ACL, {"subject": "User:alice"}, policies)


@contextlib.contextmanager
def client_of(server: Server, secret: str = "s3cret") -> Iterator[GrpcClient]:
    """A client that signs as alice."""
    with grpc_client(server.proxy) as client:
        client.user, client.secret = "alice", secret
        yield client


def send(client: GrpcClient, topic: str = "orders") -> pb.Status:
    request = pb.SendMessageRequest(messages=[new_message(topic)])
    return client.call("SendMessage", request, pb.SendMessageResponse).status


def settings(topic: str) -> pb.TelemetryCommand:
    publishing = pb.Publishing(topics=[pb.Resource(name=topic)])
    return pb.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER, publishing=publishing))


def test_a_user_sends_to_its_topic_and_to_no_other(server: Server) -> None:
    with client_of(server) as client:
        for _ in range(3):  # the first one is decoded, the others take the short way
            assert send(client).code == pb.OK
        refused = send(client, "bills")
        assert (refused.code, refused.message) == (
            pb.UNAUTHORIZED,
            "User:alice has no permission to access Topic:bills from 127.0.0.1, no matched policies.",
        )
    with client_of(server, "guess") as client:
        refused = send(client)
        assert (refused.code, refused.message) == (pb.UNAUTHORIZED, "check signature failed.")
    with grpc_client(server.proxy) as client:
        refused = send(client)
        assert (refused.code, refused.message) == (pb.UNAUTHORIZED, "username cannot be null.")


def assert_refused(stream: TelemetryStream) -> pb.Status:
    """The status in the only answer, after which the stream ends with an error."""
    status = stream.next().status
    assert status.code == pb.UNAUTHORIZED
    with pytest.raises(grpc.RpcError) as caught:
        stream.next()
    stream.close()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == status.message
    return status


def test_a_telemetry_stream_needs_the_right_to_its_topics(server: Server) -> None:
    with client_of(server) as client:
        refused = assert_refused(client.telemetry(settings("bills")))
        assert "no permission to access Topic:bills" in refused.message


def test_a_right_that_is_withdrawn_ends_sends_and_streams_of_connected_clients(server: Server) -> None:
    with client_of(server) as client:
        stream = client.telemetry(settings("orders"))
        assert stream.next().status.code == pb.OK
        assert send(client).code == pb.OK
        permit(server, "Deny")
        try:
            wait_until(lambda: send(client).code == pb.UNAUTHORIZED, 30, "the refusal of a send")
            with pytest.raises(grpc.RpcError) as caught:
                stream.next()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "no permission any more" in caught.value.details()
        finally:
            stream.close()
            permit(server, "Allow")
        wait_until(lambda: send(client).code == pb.OK, 30, "a send")


def test_the_audit_log_of_the_proxy_names_the_user_and_its_address(server: Server, data: Path) -> None:
    with client_of(server) as client:
        assert send(client).code == pb.OK

    def counted() -> list[dict[str, object]]:
        lines = [
            json.loads(line) for path in data.rglob("proxy-counts.jsonl") for line in path.read_text().splitlines()
        ]
        return [line for line in lines if line.get("user") == "alice" and line["result"] == "allowed"]

    line = wait_until(counted, 30, "a count")[-1]
    assert (line["from"], line["action"], line["resource"]) == ("127.0.0.1", "Pub", "Topic:orders")


def test_the_subject_of_a_client_certificate_is_the_user(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    assert main(["cert", "new", str(certs), "--server", "localhost", "--user", "alice"]) == 0
    pem = {path.name: path.read_bytes() for path in certs.iterdir()}
    files = {"cert": "server-localhost.pem", "key": "server-localhost.key", "client_ca": "ca.pem"}
    config = load_config(
        settings=[
            *("access.enabled=true", "proxy.port=0", "metrics.proxy_port=0", "server.namesrv=127.0.0.1:1"),
            *(f"tls.{key}={certs / name}" for key, name in files.items()),
        ],
        environment={},
    )

    def message_of(port: int, credentials: grpc.ChannelCredentials) -> str:
        with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
            message: str = GrpcClient(channel, f"127.0.0.1:{port}").route("orders").status.message
            return message

    async def scenario() -> None:
        process = ProxyProcess(config, SystemClock(), tmp_path)
        await process.start()
        try:
            port = process.listener.port
            alice = grpc.ssl_channel_credentials(pem["ca.pem"], pem["user-alice.key"], pem["user-alice.pem"])
            nobody = grpc.ssl_channel_credentials(pem["ca.pem"])
            assert await asyncio.to_thread(message_of, port, nobody) == "username cannot be null."
            # Without a broker no user is known, so this is as far as a user gets.
            assert "the users are not known yet" in await asyncio.to_thread(message_of, port, alice)
        finally:
            await process.stop()

    asyncio.run(scenario())


def test_failed_attempts_on_telemetry_streams_wait(server: Server) -> None:
    """As those of other calls do, also before a stream has sent anything."""
    with client_of(server, "guess") as client:
        times = []
        for number in range(5):
            began_s = time.monotonic()
            refused = assert_refused(client.telemetry(*([settings("orders")] if number % 2 else [])))
            times.append(time.monotonic() - began_s)
            assert refused.message == "check signature failed."
        assert times[0] >= 0.05
        assert times[4] >= 0.5
        stream = client.telemetry(*[settings("orders")] * 50)  # many messages are one attempt
        assert assert_refused(stream).message == "check signature failed."


def test_a_refused_telemetry_stream_says_so_after_the_pause_also_if_the_client_sends_no_more(server: Server) -> None:
    with client_of(server, "guess") as client:
        for commands in ([], [settings("orders")]):
            began_s = time.monotonic()
            stream = client.telemetry(*commands)
            stream.end()
            assert assert_refused(stream).message == "check signature failed."
            assert time.monotonic() - began_s >= 0.05
