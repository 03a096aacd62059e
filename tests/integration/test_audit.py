"""The audit log of a real broker: every decision has its line or its count."""

from pathlib import Path
from typing import Any

import msgspec

from latermq.access.inner_credentials import FILE_NAME
from latermq.access.users import INNER_USER
from latermq.client.session.credentials import Credentials
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import encode_frame
from latermq.server.broker.process import BrokerProcess
from tests.integration.brokers import run_with_broker, send_fields
from tests.integration.raw_client import connect
from tests.integration.test_access import ON, allow, call, create_user, send
from tests.support.signed_requests import signed


def lines(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def counted(data: Path) -> dict[tuple[str, ...], int]:
    keys = ("user", "action", "resource", "result", "by", "reason")
    found: dict[tuple[str, ...], int] = {}
    for line in lines(data / "audit/broker-counts.jsonl"):
        key = tuple(str(line.get(name, "")) for name in keys)
        found[key] = found.get(key, 0) + line["count"]
    return found


def test_administrative_requests_have_lines_and_all_others_counts(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client, connect(process.listener.port) as sender:
            await create_user(client, "alice")
            await create_user(client, "operator")
            await allow(client, "alice", "Topic:ord*", "Pub")
            await allow(client, "operator", "Topic:*", "All")
            body = b'{"password":"x"}'
            again = await call(client, "root", Request.AUTH_CREATE_USER, {"username": "alice"}, body)
            assert again.remark == "The user is existed"
            topic = {"topic": "orders"}
            refused = await call(client, "alice", Request.DELETE_TOPIC_IN_BROKER, topic)
            assert refused.code == Response.NO_PERMISSION
            assert (await send(sender, "alice")).code == Response.SUCCESS
            frames = []
            for number in range(200):
                name = "orders" if number != 150 else "bills"  # in runs, and one that is refused
                frames.append(
                    encode_frame(
                        Request.SEND_MESSAGE_V2, number, fields=signed("alice", send_fields(name), b"x"), body=b"x"
                    )
                )
            await sender.send(b"".join(frames))
            replies = [await sender.receive() for _ in frames]
            assert [reply.opaque for reply in replies if reply.code] == [150]
            assert (await call(client, "operator", Request.DELETE_TOPIC_IN_BROKER, topic)).code == Response.SUCCESS
            await send(client, "alice", secret="guess")
            await client.call(Request.GET_BROKER_CONFIG, {"AccessKey": "ghost" * 30, "Signature": "x"})
            secret = (tmp_path / FILE_NAME).read_text().strip()
            code = Request.AUTH_LIST_USER
            await client.call(code, Credentials(INNER_USER, secret).signed({}, b"", code))
            await call(client, "root", Request.GET_BROKER_RUNTIME_INFO)

    run_with_broker(tmp_path, scenario, *ON)
    requests = lines(tmp_path / "audit/broker.jsonl")
    shown = [(line["user"], line["request"], line["result"]) for line in requests]
    assert shown == [
        ("root", "AUTH_CREATE_USER", "allowed"),
        ("root", "AUTH_CREATE_USER", "allowed"),
        ("root", "AUTH_CREATE_ACL", "allowed"),
        ("root", "AUTH_CREATE_ACL", "allowed"),
        ("root", "AUTH_CREATE_USER", "allowed"),
        ("root", "AUTH_CREATE_USER", "failed"),
        ("alice", "DELETE_TOPIC_IN_BROKER", "refused"),
        ("operator", "DELETE_TOPIC_IN_BROKER", "allowed"),
        (INNER_USER, "AUTH_LIST_USER", "allowed"),
    ]
    assert requests[0]["access"] == [{"action": "Update", "resource": "Cluster:DefaultCluster", "by": "super user"}]
    assert requests[0]["details"] == {"username": "alice", "secret": "new", "type": "Normal"}
    assert requests[2]["details"] == {"subject": "User:alice", "entries": "Allow Pub on Topic:ord*"}
    assert requests[5]["reason"] == "The user is existed"
    assert requests[6]["reason"].endswith("no matched policies.")
    assert requests[6]["details"] == {"topic": "orders"}
    assert requests[7]["access"] == [
        {"action": "Delete", "resource": "Topic:orders", "entry": 1, "by": "Allow All on Topic:*"}
    ]
    assert all(line["from"].startswith("127.0.0.1:") for line in requests)
    text = (tmp_path / "audit/broker.jsonl").read_text() + (tmp_path / "audit/broker-counts.jsonl").read_text()
    assert "s3cret" not in text
    assert "ghost" not in text
    counts = counted(tmp_path)
    by = "Allow Pub on Topic:ord*"
    assert counts.pop(("alice", "Pub", "Topic:orders", "allowed", by, "")) == 200
    assert counts == {
        ("alice", "Pub", "Topic:bills", "refused", "", REFUSED): 1,
        ("", "SEND_MESSAGE_V2", "", "refused", "", "check signature failed."): 1,
        ("", "GET_BROKER_CONFIG", "", "refused", "", "the user is not known"): 1,
        ("root", "Get", "Cluster:DefaultCluster", "allowed", "super user", ""): 1,
    }


REFUSED = "User:alice has no permission to access Topic:bills from 127.0.0.1, no matched policies."


def test_what_would_be_refused_is_audited_while_refusals_are_only_logged(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            await create_user(client, "alice")
            assert (await send(client, "alice")).code == Response.SUCCESS
            topic = {"topic": "orders"}
            assert (await call(client, "alice", Request.DELETE_TOPIC_IN_BROKER, topic)).code == Response.SUCCESS

    run_with_broker(tmp_path, scenario, *ON, "access.mode=log")
    last = lines(tmp_path / "audit/broker.jsonl")[-1]
    assert (last["user"], last["request"], last["result"]) == ("alice", "DELETE_TOPIC_IN_BROKER", "would be refused")
    [(key, count)] = counted(tmp_path).items()
    assert key[:4] == ("alice", "Pub", "Topic:orders", "would be refused")
    assert count >= 1


def test_without_an_audit_log_requests_are_served_as_before(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            assert (await send(client, "root")).code == Response.SUCCESS

    run_with_broker(tmp_path, scenario, *ON, "audit.enabled=false")
    assert not (tmp_path / "audit").exists()
