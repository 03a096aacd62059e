"""What strangers have saved is read at the next start; what is not understood there keeps no broker from starting."""

from pathlib import Path

from latermq.protocol.remoting.codes import Request, Response
from tests.integration.brokers import send_fields
from tests.security.attacker import attacking
from tests.support.serving import serving

DEEP = [100, 900, *range(960, 1_001), 5_000, 100_000]


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def test_json_that_is_nested_deeply_is_an_ordinary_error_and_the_next_start_works(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server, attacking(server.port) as attacker:
        for levels in DEEP:
            for number, body in enumerate((
                b'{"groupName":"g%d","groupRetryPolicy":{"a":%s}}',
                b'{"groupName":"g%d","subscriptionDataSet":[{"a":%s}]}',
                b'{"groupName":"g%d","attributes":{"a":%s}}',
                b'{"groupName":"g%d","unknown":%s}',
            )):  # fmt: skip
                # Taken or not, what is not known is not kept.
                attacker.call(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body % (number, nested(levels)))
        for code in Request:
            for port in (server.port, server.namesrv_port):
                with attacking(port) as stranger:
                    for body in (nested(20_000), b'{"a":' * 20_000 + b"1" + b"}" * 20_000):
                        reply = stranger.call(code, {}, body)
                        assert "internal error" not in (reply.remark or ""), code
        assert "Traceback" not in server.log()
        assert attacker.call(Request.SEND_MESSAGE_V2, send_fields("orders"), b"body").code == Response.SUCCESS
    with serving(tmp_path / "data") as server, attacking(server.port) as attacker:
        assert attacker.call(Request.SEND_MESSAGE_V2, send_fields("orders"), b"body").code == Response.SUCCESS
        assert "unreadable" not in server.log()


def test_files_that_are_not_understood_are_set_aside_and_the_servers_start(tmp_path: Path) -> None:
    """As an earlier release wrote them for strangers, or as a disk damaged them."""
    data = tmp_path / "data"
    with serving(data) as server, attacking(server.port) as attacker:
        assert attacker.call(Request.SEND_MESSAGE_V2, send_fields("orders"), b"body").code == Response.SUCCESS
    evil = b'{"subscriptionGroupTable":{"evil":{"groupName":"evil","groupRetryPolicy":{"a":%s}},'
    groups = evil % nested(5_000) + b'"good":{"groupName":"good","retryMaxTimes":3}}}'
    (data / "config" / "subscriptionGroup.json").write_bytes(groups)
    (data / "config" / "topics.json").write_bytes(b"\0" * 1_000)
    (data / "namesrv" / "kvConfig.json").write_bytes(nested(5_000))
    (data / "namesrv" / "brokers.json").write_bytes(nested(5_000))
    with serving(data) as server, attacking(server.port) as attacker:
        found = attacker.call(Request.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "good"})
        assert b'"retryMaxTimes":3' in found.body
        assert attacker.call(Request.SEND_MESSAGE_V2, send_fields("orders"), b"body").code == Response.SUCCESS
        errors = [line for line in server.log().splitlines() if "config file not understood" in line]
        assert len(errors) == 4
        assert all("[error" in line and ".unreadable-1" in line for line in errors)
    assert (data / "config" / "subscriptionGroup.json.unreadable-1").read_bytes() == groups
    with serving(data) as server:
        assert "not understood" not in server.log()
