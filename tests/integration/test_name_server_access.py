"""A name server that checks users: it copies them from its brokers, and every request needs one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from latermq.access.inner_credentials import FILE_NAME
from latermq.access.users import INNER_USER
from latermq.client import Credentials, OutgoingMessage, Producer
from latermq.client.session.failures import AccessRefused
from latermq.clock import SystemClock
from latermq.errors import ConfigError, TopicNotFound
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import BINARY, JSON, Command
from latermq.server.namesrv.name_server import NameServerProcess
from tests.integration.brokers import running_broker, small_config
from tests.integration.raw_client import RawClient, connect
from tests.support.signed_requests import DENIALS, SECRETS, answer, sample_of, signed, touched

ON = ("access.enabled=true", "access.init_user=root:r00t")
WAIT_S = 10.0


@asynccontextmanager
async def running_name_server(data: Path, *settings: str) -> AsyncIterator[NameServerProcess]:
    config = small_config("server.namesrv_port=0", "access.enabled=true", "access.copy_every=50ms", *settings)
    process = NameServerProcess(config, SystemClock(), data)
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


async def call(
    client: RawClient, user: str, code: int, fields: dict[str, str] | None = None, body: bytes = b"", secret: str = ""
) -> Command:
    return await client.call(code, signed(user, fields or {}, body, secret, code=code), body)


async def route(client: RawClient, user: str, topic: str = "orders", secret: str = "") -> Command:
    return await call(client, user, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, secret=secret)


async def until_remark(client: RawClient, user: str, start: str, secret: str = "") -> None:
    """Ask for a route until the answer's remark begins like this."""
    async with asyncio.timeout(WAIT_S):
        while not ((await route(client, user, secret=secret)).remark or "").startswith(start):  # noqa: ASYNC110 - has no event
            await asyncio.sleep(0.02)


async def administer(client: RawClient, name: str, *entries: tuple[str, str]) -> None:
    """Create a user at the broker with a right to these resources."""
    body = msgspec.json.encode({"password": SECRETS[name]})
    assert (await call(client, "root", Request.AUTH_CREATE_USER, {"username": name}, body)).code == 0
    for resource, action in entries:
        entry = {"resource": resource, "actions": [action], "decision": "Allow"}
        body = msgspec.json.encode({"policies": [{"policyType": "Custom", "entries": [entry]}]})
        assert (await call(client, "root", Request.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, body)).code == 0


def test_users_are_refused_until_a_broker_has_given_them_and_changes_are_followed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_name_server(tmp_path) as namesrv, connect(namesrv.listener.port) as client:
            reply = await route(client, "root")
            assert (reply.code, (reply.remark or "").partition(".")[0]) == (
                Response.SERVICE_NOT_AVAILABLE, "the users are not known yet: no broker is registered",
            )  # fmt: skip
            address = f"127.0.0.1:{namesrv.listener.port}"
            async with running_broker(tmp_path, *ON, f"server.namesrv={address}") as broker:
                await until_remark(client, "root", "no route to topic")
                async with connect(broker.listener.port) as admin:
                    await until_remark(client, "alice", "User:alice is not found")
                    await administer(admin, "alice", ("Topic:ord*", "Pub"))
                    await until_remark(client, "alice", "no route to topic")
                    assert "Topic:bills" in ((await route(client, "alice", "bills")).remark or "")
                    body = msgspec.json.encode({"userStatus": "disable"})
                    await call(admin, "root", Request.AUTH_UPDATE_USER, {"username": "alice"}, body)
                    await until_remark(client, "alice", "User:alice is disabled.")
                    assert namesrv._statistics()["access_users"] == 2
            # Without a broker, the last copy stays in use.
            await asyncio.sleep(0.2)
            assert ((await route(client, "alice")).remark or "") == "User:alice is disabled."
            assert (await route(client, "root", secret="guess")).remark == "check signature failed."
            assert namesrv._statistics()["unauthenticated_requests"] > 0

    asyncio.run(scenario())


def test_every_request_needs_a_user_its_signature_and_a_right(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_name_server(tmp_path) as namesrv, connect(namesrv.listener.port) as client:
            address = f"127.0.0.1:{namesrv.listener.port}"
            async with running_broker(tmp_path, *ON, f"server.namesrv={address}") as broker:
                async with connect(broker.listener.port) as admin:
                    everything = [(f"{kind}:*", "All") for kind in ("Topic", "Cluster")]
                    await administer(admin, "operator", *everything)
                    await administer(admin, "alice")
                await until_remark(client, "operator", "no route to topic")
                await until_remark(client, "alice", "User:alice has no permission")
                table = namesrv.server.table
                endpoints = list(table)
                assert len(endpoints) == 19
                for endpoint in endpoints:
                    name = endpoint.code.name
                    fields, body = sample_of(endpoint)
                    for encoding in (JSON, BINARY):
                        refused = answer(table, endpoint, fields, body, encoding)
                        assert refused == "username cannot be null.", name
                        wrong = signed("operator", fields, body, "guess")
                        assert answer(table, endpoint, wrong, body, encoding) == "check signature failed.", name
                        remark = answer(table, endpoint, signed("alice", fields, body), body, encoding)
                        assert touched(endpoint, fields, body), f"{name} has no rule"
                        assert remark.startswith("User:alice has no permission to access "), (name, remark)
                        remark = answer(table, endpoint, signed("operator", fields, body), body, encoding)
                        assert not remark.endswith(DENIALS), (name, remark)

    asyncio.run(scenario())


def test_only_who_may_change_the_cluster_registers_a_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_name_server(tmp_path) as namesrv, connect(namesrv.listener.port) as client:
            header = {"brokerName": "b", "brokerAddr": "10.6.6.6:1", "clusterName": "c", "brokerId": "0"}
            assert (await client.call(Request.REGISTER_BROKER, header)).remark == "username cannot be null."
            reply = await call(client, INNER_USER, Request.REGISTER_BROKER, header, secret="guess")
            assert reply.remark == "check signature failed."
            assert namesrv.server.routes.statistics()["brokers"] == 0
            secret = (tmp_path / FILE_NAME).read_text().strip()
            reply = await call(client, INNER_USER, Request.REGISTER_BROKER, header, secret=secret)
            assert "User" not in (reply.remark or "")

    asyncio.run(scenario())


def test_a_producer_with_a_right_to_one_topic_creates_and_uses_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_name_server(tmp_path) as namesrv, connect(namesrv.listener.port) as client:
            address = f"127.0.0.1:{namesrv.listener.port}"
            async with running_broker(tmp_path, *ON, f"server.namesrv={address}") as broker:
                async with connect(broker.listener.port) as admin:
                    await administer(admin, "alice", ("Topic:orders", "Pub"))
                await until_remark(client, "alice", "no route to topic")
                async with Producer(address, credentials=Credentials("alice", SECRETS["alice"])) as producer:
                    assert (await producer.send(OutgoingMessage("orders", b"x"))).status == "SEND_OK"
                    with pytest.raises(AccessRefused):
                        await producer.send(OutgoingMessage("bills", b"x"))
                    await call(client, "root", Request.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
                    with pytest.raises(TopicNotFound):  # and not a refusal to tell which brokers there are
                        await producer._session.routes.lookup("orders")

    asyncio.run(scenario())


def test_without_a_secret_it_does_not_start(tmp_path: Path) -> None:
    config = small_config("server.namesrv_port=0", "access.enabled=true")

    async def scenario() -> None:
        with pytest.raises(ConfigError, match="no inner secret") as caught:
            NameServerProcess(config, SystemClock())
        assert "access.inner_file" in caught.value.hint

    asyncio.run(scenario())
    assert not (tmp_path / FILE_NAME).exists()
