"""A lying server passes on what others have signed for it, as another request, to a broker that checks users."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from latermq.access.inner_credentials import FILE_NAME
from latermq.access.policies import Acl, parse_entry
from latermq.access.signatures import ACCESS_KEY, BOUND, SIGNATURE, bound_content, signed_content
from latermq.access.users import INNER_USER
from latermq.client.access.copied_users import CopiedUsers
from latermq.client.session.connection import Connections
from latermq.client.session.credentials import Credentials
from latermq.client.users import UserAdmin
from latermq.errors import LaterMQError
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.server.broker.process import BrokerProcess
from tests.integration.brokers import run_with_broker, send_fields
from tests.integration.raw_client import connect
from tests.integration.test_access import ON, send
from tests.support.frame_server import FrameServer, frame_server
from tests.support.signed_requests import answer

REFUSALS = ("check signature failed.", "the signature could be of another request.")
ROOT = Credentials("root", "r00t")
MESSAGE = b'{"password":"x","userType":"Super"}'  # of a client; as a creation of a user, it would be a super user


def captured(lying: FrameServer) -> list[tuple[int, dict[str, str], bytes]]:
    """The requests that the lying server has received."""
    return [(one.code, dict(one.signed_texts()), bytes(one.body)) for one in lying.requests]


def cut_elsewhere(fields: Mapping[str, str], body: bytes, name: str, value: str) -> dict[str, str]:
    """Fields with the same values in a row, cut so that one of them has this name and value."""
    content = signed_content(fields, body).decode()
    user = fields[ACCESS_KEY]
    before, found, after = content.removeprefix(user).partition(value)
    assert content.startswith(user)
    assert found
    return {ACCESS_KEY: user, "a": before, name: value, "zz": after, SIGNATURE: fields[SIGNATURE]}


def as_plain(code: int, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
    """A request with a plain signature whose values, in a row, are what the bound signature covers."""
    content = bound_content(code, fields, body).decode()
    user = fields[ACCESS_KEY]
    before, _, rest = content.partition(f"{ACCESS_KEY}{len(user)}:{user}")
    middle, _, after = rest.partition("orders")
    return {
        "A": f"{before}{ACCESS_KEY}{len(user)}:",
        ACCESS_KEY: user,
        "a": middle,
        "topic": "orders",
        "zz": after,
        SIGNATURE: fields[SIGNATURE].removeprefix(BOUND),
    }


def lie(command: Command) -> bytes:
    return encode_response(command, fields={})


def has_topic(process: BrokerProcess) -> bool:
    return process.broker.topics.find("orders") is not None


async def ask_as_own_processes(address: str, secret: str) -> None:
    """What proxies, name servers, brokers and the console sign for any server that they ask."""
    connections = Connections(on_request=lambda *_: None, credentials=Credentials(INNER_USER, secret))
    for code, fields, body in (
        (Request.SEND_MESSAGE_V2, send_fields("orders"), MESSAGE),
        (Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}, b""),
        (Request.REGISTER_BROKER, {"brokerName": "orders", "brokerAddr": "10.6.6.6:1"}, b"{}"),
    ):
        await connections.call(address, code, fields, body)
    users = CopiedUsers(connections, lambda: [address], secret, 1.0)
    await users.refresh()
    await connections.close()


async def ask_with_commands(address: str) -> None:
    """What `latermq user` and `latermq acl` sign for a super user."""
    async with UserAdmin(address, credentials=ROOT) as admin:
        with contextlib.suppress(LaterMQError):
            await admin.everywhere()
        place = admin.at(address, "a broker")
        await place.users()
        await place.merge_acl("orders", Acl([parse_entry("Topic:orders", ["Pub"], [], "Allow")]))


def test_no_request_of_own_processes_and_commands_can_become_another_one(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        secret = (tmp_path / FILE_NAME).read_text().strip()
        with frame_server(lie) as lying:
            await ask_as_own_processes(lying.address, secret)
            await ask_with_commands(lying.address)
            requests = captured(lying)
        assert {fields[ACCESS_KEY] for _, fields, _ in requests} == {INNER_USER, "root"}
        assert len(requests) >= 7
        async with connect(process.listener.port) as client:
            assert (await send(client, "root")).code == Response.SUCCESS
        users, table = process._access.table, process.service.table
        assert users is not None
        before = users.state
        for code, fields, body in requests:
            for endpoint in table:
                if endpoint.code != code:
                    assert answer(table, endpoint, fields, body) in REFUSALS, (code, endpoint.code.name)
            variants = [({**fields, SIGNATURE: fields[SIGNATURE].removeprefix(BOUND)}, body)]
            if "orders" in signed_content(fields, body).decode():
                variants.append((cut_elsewhere(fields, body, "topic", "orders"), b""))
                variants.append((as_plain(code, fields, body), b""))
            for changed, content in variants:
                endpoint = table[Request.DELETE_TOPIC_IN_BROKER]
                assert answer(table, endpoint, changed, content) in REFUSALS, code
        async with connect(process.listener.port) as client:  # and through a socket
            [code, fields, body] = requests[0]
            reply = await client.call(Request.DELETE_TOPIC_IN_BROKER, cut_elsewhere(fields, body, "topic", "orders"))
            assert (reply.code, reply.remark) == (Response.NO_PERMISSION, REFUSALS[0])
            reply = await client.call(code, fields, body)
            assert reply.code == Response.SUCCESS, "the signature is right for the request itself"
        assert users.state is before
        assert has_topic(process)

    run_with_broker(tmp_path, scenario, *ON)


def test_a_request_of_a_client_of_rocketmq_can_become_another_one(tmp_path: Path) -> None:
    """What its signatures cannot prevent: the reason why super users should connect with TLS."""

    async def ask(address: str) -> None:
        connections = Connections(on_request=lambda *_: None, credentials=ROOT)
        await connections.call(address, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        await connections.close()

    async def scenario(process: BrokerProcess) -> None:
        with frame_server(lie) as lying:
            await ask(lying.address)
            [(_, fields, body)] = captured(lying)
        async with connect(process.listener.port) as client:
            assert (await send(client, "root")).code == Response.SUCCESS
            assert has_topic(process)
            reply = await client.call(Request.DELETE_TOPIC_IN_BROKER, cut_elsewhere(fields, body, "topic", "orders"))
            assert reply.code == Response.SUCCESS
            assert not has_topic(process)

    run_with_broker(tmp_path, scenario, *ON)


def test_a_repeated_send_lets_its_connection_send_other_messages_to_the_same_topic(tmp_path: Path) -> None:
    """What bound signatures cannot prevent, because a verdict covers the requests after it; and no more than that."""

    async def ask(address: str, secret: str) -> None:
        connections = Connections(on_request=lambda *_: None, credentials=Credentials(INNER_USER, secret))
        await connections.call(address, Request.SEND_MESSAGE_V2, send_fields("orders"), MESSAGE)
        await connections.close()

    async def scenario(process: BrokerProcess) -> None:
        with frame_server(lie) as lying:
            await ask(lying.address, (tmp_path / FILE_NAME).read_text().strip())
            [(code, fields, body)] = captured(lying)
        unsigned = {ACCESS_KEY: INNER_USER}
        async with connect(process.listener.port) as client:
            assert (await client.call(code, send_fields("orders") | unsigned, b"forged")).code == Response.NO_PERMISSION
            assert (await client.call(code, fields, body)).code == Response.SUCCESS
            assert (await client.call(code, send_fields("orders") | unsigned, b"forged")).code == Response.SUCCESS
            assert (await client.call(code, send_fields("bills") | unsigned, b"forged")).remark == REFUSALS[0]
            reply = await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "orders"} | unsigned)
            assert reply.remark == REFUSALS[0]

    run_with_broker(tmp_path, scenario, *ON)
