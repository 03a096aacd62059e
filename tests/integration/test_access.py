"""Users and permissions at a real broker: every request, every lane, and every change on open connections."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from latermq.access.access_file import ACCESS_PATH
from latermq.access.inner_credentials import FILE_NAME
from latermq.access.users import INNER_USER
from latermq.errors import ConfigError
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import BINARY, JSON, Command, encode_frame, join_frame
from latermq.server.access.users import MAX_FAILURES
from latermq.server.broker.process import BrokerProcess
from tests.integration.brokers import run_with_broker, send_fields
from tests.integration.raw_client import RawClient, connect
from tests.support.signed_requests import (
    DENIALS,
    SECRETS,
    CheckedConnection,
    answer,
    sample_of,
    signed,
    touched,
)

ON = ("access.enabled=true", "access.init_user=root:r00t")
MAX_BINARY_CODE = 0x7FFF


async def call(
    client: RawClient, user: str, code: int, fields: dict[str, str] | None = None, body: bytes = b"", secret: str = ""
) -> Command:
    return await client.call(code, signed(user, fields or {}, body, secret, code=code), body)


async def send(client: RawClient, user: str, topic: str = "orders", secret: str = "") -> Command:
    return await call(client, user, Request.SEND_MESSAGE_V2, send_fields(topic), b"body", secret)


async def create_user(client: RawClient, name: str, kind: str = "Normal") -> None:
    body = msgspec.json.encode({"password": SECRETS[name], "userType": kind})
    reply = await call(client, "root", Request.AUTH_CREATE_USER, {"username": name}, body)
    assert reply.code == Response.SUCCESS, reply.remark


async def allow(client: RawClient, name: str, resource: str, *actions: str, decision: str = "Allow") -> None:
    entry = {"resource": resource, "actions": actions, "decision": decision}
    body = msgspec.json.encode({"policies": [{"policyType": "Custom", "entries": [entry]}]})
    reply = await call(client, "root", Request.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, body)
    assert reply.code == Response.SUCCESS, reply.remark


def test_every_request_needs_a_user_its_signature_and_a_right(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            await create_user(client, "alice")
            await create_user(client, "operator")
            for kind in ("Topic", "Group", "Cluster"):
                await allow(client, "operator", f"{kind}:*", "All")
        endpoints = list(process.service.table)
        assert len(endpoints) > 90
        for endpoint in endpoints:
            name = endpoint.code.name
            fields, body = sample_of(endpoint)
            touches = touched(endpoint, fields, body)
            for encoding in (JSON, BINARY) if endpoint.code <= MAX_BINARY_CODE else (JSON,):
                refused = answer(process.service.table, endpoint, fields, body, encoding)
                assert refused == "username cannot be null.", name
                wrong = {**signed("operator", fields, body), "Signature": signed("alice", fields, body)["Signature"]}
                assert answer(process.service.table, endpoint, wrong, body, encoding) == "check signature failed.", name
                remark = answer(process.service.table, endpoint, signed("alice", fields, body), body, encoding)
                if touches is None:
                    assert remark, f"{name} was served"  # what it touches cannot be read
                elif touches:
                    assert remark.startswith("User:alice has no permission to access "), (name, remark)
                if endpoint.code == Request.UNREGISTER_CLIENT:
                    continue  # changes nothing that could be seen
                remark = answer(process.service.table, endpoint, signed("operator", fields, body), body, encoding)
                assert not remark.endswith(DENIALS), (name, remark)

    run_with_broker(tmp_path, scenario, *ON)


def test_a_change_is_in_effect_for_the_next_request_of_every_open_connection(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        port = process.listener.port
        async with connect(port) as root, connect(port) as one, connect(port) as two:
            await create_user(root, "alice")
            assert "no matched policies" in ((await send(one, "alice")).remark or "")
            await allow(root, "alice", "Topic:ord*", "Pub")
            for client in (one, two, one):
                assert (await send(client, "alice")).code == Response.SUCCESS
            assert (await send(one, "alice", "bills")).code == Response.NO_PERMISSION
            await allow(root, "alice", "Topic:orders", "Pub", decision="Deny")
            for client in (one, two):
                refused = await send(client, "alice")
                assert refused.remark == (
                    "User:alice has no permission to access Topic:orders from 127.0.0.1, the decision is deny."
                )
            resource = {"subject": "User:alice", "resource": "Topic:orders"}
            assert (await call(root, "root", Request.AUTH_DELETE_ACL, resource)).code == Response.SUCCESS
            assert (await send(one, "alice")).code == Response.SUCCESS
            body = msgspec.json.encode({"password": "n3xt", "keepPrevious": True})
            assert (await call(root, "root", Request.AUTH_UPDATE_USER, {"username": "alice"}, body)).code == 0
            assert (await send(one, "alice", secret="n3xt")).code == Response.SUCCESS
            assert (await send(two, "alice")).code == Response.SUCCESS
            body = msgspec.json.encode({"dropPrevious": True})
            assert (await call(root, "root", Request.AUTH_UPDATE_USER, {"username": "alice"}, body)).code == 0
            assert (await send(two, "alice")).remark == "check signature failed."
            body = msgspec.json.encode({"userStatus": "disable"})
            assert (await call(root, "root", Request.AUTH_UPDATE_USER, {"username": "alice"}, body)).code == 0
            assert (await send(one, "alice", secret="n3xt")).remark == "User:alice is disabled."
            assert (await call(root, "root", Request.AUTH_DELETE_USER, {"username": "alice"})).code == 0
            assert (await send(one, "alice", secret="n3xt")).remark == "User:alice is not found."

    run_with_broker(tmp_path, scenario, *ON)


def test_a_run_of_sends_is_stored_up_to_the_first_that_is_not_permitted(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        port = process.listener.port
        async with connect(port) as root, connect(port) as client:
            await create_user(root, "alice")
            await create_user(root, "bob")
            await allow(root, "alice", "Topic:orders", "Pub")
            assert (await send(client, "alice")).code == Response.SUCCESS
            users = ["alice", "alice", "bob", "alice", "", "alice"]
            frames = []
            for number, user in enumerate(users):
                fields = send_fields("orders")
                fields = signed(user, fields, b"x") if user else fields
                frames.append(encode_frame(Request.SEND_MESSAGE_V2, number, fields=fields, body=b"x"))
            await client.send(b"".join(frames))
            codes = [(await client.receive()).code for _ in users]
            assert codes == [0, 0, 16, 0, 16, 0]
            [queue] = [one for one in process.broker.store.queues if one.topic == "orders"]
            assert queue.next_offset == 5

    run_with_broker(tmp_path, scenario, *ON)


def test_failed_attempts_are_slowed_down_and_then_end_the_connection(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        port = process.listener.port
        async with connect(port) as root, connect(port) as stranger:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            for _ in range(3):
                assert (await send(stranger, "root", secret="guess")).remark == "check signature failed."
            await send(stranger, "root", secret="guess")
            assert loop.time() - began_s >= 0.3  # 50 + 100 + 200 ms
            assert (await send(root, "root")).code == Response.SUCCESS  # others from that address are served
            connection = next(iter(one for one in process.listener._accepted if one.failed_attempts))
            connection.failed_attempts = MAX_FAILURES - 1
            reply = await send(stranger, "root", secret="guess")
            assert reply.remark == "check signature failed."
            assert await stranger.is_closed_by_server()
            assert process.listener.statistics()["closed_unauthenticated"] == 1

    run_with_broker(tmp_path, scenario, *ON)


def test_while_refusals_are_only_logged_all_is_served_except_changes_of_users(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            reply = await client.call(Request.SEND_MESSAGE_V2, send_fields("orders"), b"x")
            assert reply.code == Response.SUCCESS
            reply = await client.call(Request.AUTH_CREATE_USER, {"username": "mallory"}, b'{"password":"x"}')
            assert reply.remark == "username cannot be null."
            await create_user(client, "alice")
            assert process._access.statistics()["unauthorized_requests"] > 0

    run_with_broker(tmp_path, scenario, *ON, "access.mode=log")


def test_without_access_requests_about_users_are_not_supported(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            reply = await client.call(Request.AUTH_LIST_USER, {})
            assert reply.code == Response.REQUEST_CODE_NOT_SUPPORTED
            assert "access.enabled" in (reply.remark or "")
        assert not (tmp_path / ACCESS_PATH).exists()
        assert not (tmp_path / FILE_NAME).exists()

    run_with_broker(tmp_path, scenario)


@pytest.mark.parametrize("step", ["write", "rename"])
def test_a_change_that_the_file_system_refuses_is_not_in_effect(tmp_path: Path, step: str) -> None:
    file = tmp_path / ACCESS_PATH
    obstacle = file.with_name(f"{file.name}.draft") if step == "write" else file

    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as root, connect(process.listener.port) as client:
            await create_user(root, "alice")
            content = file.read_bytes()
            file.unlink()
            (obstacle / "in the way").mkdir(parents=True)
            if step == "write":
                file.write_bytes(content)
            entry = {"resource": "Topic:orders", "actions": ["Pub"], "decision": "Allow"}
            body = msgspec.json.encode({"policies": [{"policyType": "Custom", "entries": [entry]}]})
            refused = await call(root, "root", Request.AUTH_CREATE_ACL, {"subject": "User:alice"}, body)
            assert "cannot write config/latermq.access" in (refused.remark or "")
            assert "no matched policies" in ((await send(client, "alice")).remark or "")
            assert (await call(root, "root", Request.AUTH_GET_ACL, {"subject": "User:alice"})).body == b""
            (obstacle / "in the way").rmdir()
            obstacle.rmdir()
            await allow(root, "alice", "Topic:orders", "Pub")
            assert (await send(client, "alice")).code == Response.SUCCESS

    run_with_broker(tmp_path, scenario, *ON, "audit.flush_every=1s")
    lines = (tmp_path / "audit" / "broker.jsonl").read_text()
    assert '"result":"failed"' in lines
    assert "cannot write" in lines


def test_users_survive_a_restart_and_their_file_is_private(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            await create_user(client, "alice")
            await allow(client, "alice", "Topic:orders", "Pub")

    async def again(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            assert (await send(client, "alice")).code == Response.SUCCESS

    run_with_broker(tmp_path, scenario, *ON)
    for path in (tmp_path / ACCESS_PATH, tmp_path / FILE_NAME):
        assert path.stat().st_mode & 0o777 == 0o600
    run_with_broker(tmp_path, again, "access.enabled=true", "access.init_user=root:another")


def test_a_key_encrypts_the_secrets_and_is_needed_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            assert (await send(client, "root")).code == Response.SUCCESS

    run_with_broker(tmp_path, scenario, *ON)
    assert b"r00t" in (tmp_path / ACCESS_PATH).read_bytes()
    key_file = tmp_path / "key"
    key_file.write_text("a key of the operator\n")
    run_with_broker(tmp_path, scenario, "access.enabled=true", f"access.key_file={key_file}")
    assert b"r00t" not in (tmp_path / ACCESS_PATH).read_bytes()
    monkeypatch.setenv("LATERMQ_SECRET_KEY", "a key of the operator")
    run_with_broker(tmp_path, scenario, "access.enabled=true")
    monkeypatch.setenv("LATERMQ_SECRET_KEY", "another key than before")
    with pytest.raises(ConfigError, match="with another key"):
        run_with_broker(tmp_path, scenario, "access.enabled=true")


def test_a_start_without_a_super_user_is_refused(tmp_path: Path) -> None:
    async def scenario(_: BrokerProcess) -> None: ...

    with pytest.raises(ConfigError, match="there is no super user"):
        run_with_broker(tmp_path, scenario, "access.enabled=true")


@pytest.mark.parametrize("by", ["deletion", '{"userType":"Normal"}', '{"userStatus":"disable"}'])
@pytest.mark.parametrize("other", ["none", "disabled"])
def test_no_request_can_keep_a_broker_from_starting_again(tmp_path: Path, by: str, other: str) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            header = {"username": "root"}
            known = await call(client, "root", Request.AUTH_GET_USER, {"username": "operator"})
            if other == "disabled" and not known.body:  # at the first start
                await create_user(client, "operator", "Super")
                body = b'{"userStatus":"disable"}'
                reply = await call(client, "root", Request.AUTH_UPDATE_USER, {"username": "operator"}, body)
                assert reply.code == Response.SUCCESS
            if by == "deletion":
                reply = await call(client, "root", Request.AUTH_DELETE_USER, header)
            else:
                reply = await call(client, "root", Request.AUTH_UPDATE_USER, header, by.encode())
            assert reply.code == Response.NO_PERMISSION
            only = "only" if other == "none" else "only enabled"
            assert (reply.remark or "").startswith(f"User:root is the {only} super user")
            body = b'{"password":"r00t","userType":"Super"}'
            assert (await call(client, "root", Request.AUTH_UPDATE_USER, header, body)).code == Response.SUCCESS

    run_with_broker(tmp_path, scenario, *ON)
    run_with_broker(tmp_path, scenario, "access.enabled=true")


def test_settings_that_clients_may_read_contain_no_password(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            reply = await call(client, "root", Request.GET_BROKER_CONFIG)
            assert b"r00t" not in reply.body
            assert b"access.mode" in reply.body
            await create_user(client, "operator")
            await allow(client, "operator", "Cluster:*", "Get")
            told = await call(client, "operator", Request.AUTH_GET_USER, {"username": "root"})
            assert msgspec.json.decode(told.body) == {
                "username": "root", "userType": "Super", "userStatus": "enable",
            }  # fmt: skip
            told = await call(client, "root", Request.AUTH_GET_USER, {"username": "root"})
            assert msgspec.json.decode(told.body)["password"] == "r00t"
            reply = await call(client, "operator", Request.AUTH_CREATE_USER, {"username": "eve"}, b'{"password":"x"}')
            assert reply.code == Response.NO_PERMISSION
            reply = await call(client, "root", Request.ACCESS_STATE, {"nonce": "n"})
            assert "own processes" in (reply.remark or "")
            secret = (tmp_path / FILE_NAME).read_text().strip()
            reply = await call(client, INNER_USER, Request.ACCESS_STATE, {"nonce": "n"}, secret=secret)
            assert reply.code == Response.SUCCESS
            assert b"r00t" not in reply.body

    run_with_broker(tmp_path, scenario, *ON)


def test_administration_from_other_machines_needs_tls_unless_a_setting_says_otherwise(tmp_path: Path) -> None:
    fields = {"topic": "orders", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}

    def remark(process: BrokerProcess, connection: CheckedConnection, code: Request, sent: dict[str, str]) -> str:
        table = process.service.table
        return answer(table, table[code], signed("root", sent), connection=connection)

    def is_refused(remark: str) -> bool:
        return remark.startswith("administrative requests from other machines need TLS")

    async def refused(process: BrokerProcess) -> None:
        remote, local = CheckedConnection(is_encrypted=False), CheckedConnection("127.0.0.1", is_encrypted=False)
        assert is_refused(remark(process, remote, Request.UPDATE_AND_CREATE_TOPIC, fields))
        assert is_refused(remark(process, remote, Request.AUTH_LIST_USER, {}))
        assert not [topic for topic in process.broker.topics.table.topics if topic == "orders"]
        assert remark(process, CheckedConnection(is_encrypted=True), Request.AUTH_LIST_USER, {}) == ""
        assert remark(process, local, Request.AUTH_LIST_USER, {}) == ""
        offset = remark(process, remote, Request.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"})
        assert not is_refused(offset)  # a data request

    async def served(process: BrokerProcess) -> None:
        assert remark(process, CheckedConnection(is_encrypted=False), Request.AUTH_LIST_USER, {}) == ""

    run_with_broker(tmp_path, refused, *ON)
    run_with_broker(tmp_path, served, *ON, "access.admin_plaintext=true")


@pytest.mark.parametrize("start", [b'{"code":310', b'{"opaque":1,"code":310'])
def test_fields_of_a_send_that_are_no_texts_count_as_they_are_written(tmp_path: Path, start: bytes) -> None:
    def frame(fields: bytes) -> bytes:
        return join_frame(JSON, start + b',"extFields":' + fields + b"}", b"body")

    async def scenario(process: BrokerProcess) -> None:
        named = signed("root", send_fields("orders"), b"body")
        async with connect(process.listener.port) as client:
            await client.send(frame(msgspec.json.encode({**named, "zz": "?"}).replace(b"?", b"\xff")))
            assert (await client.receive()).remark == "the header fields of request 310 cannot be read"
            await client.send(frame(msgspec.json.encode({**named, "d": 5})))
            assert (await client.receive()).remark == "check signature failed."
            await client.send(frame(msgspec.json.encode({**named, "d": 4, "e": 0})))
            assert (await client.receive()).code == Response.SUCCESS

    run_with_broker(tmp_path, scenario, *ON)
