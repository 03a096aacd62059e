"""What strangers have saved is read at the next start; what is not understood there keeps no broker from starting."""

from pathlib import Path

from latermq.protocol.remoting.codes import Request, Response
from tests.integration.brokers import send_fields
from tests.security.attacker import attacking
from tests.serving import serving

DEEP = [100, 900, *range(960, 1_001), 5_000, 100_000]


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def test_a_configuration_that_is_nested_deeply_is_refused_and_the_next_start_works(tmp_path: Path) -> None:
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
        assert attacker.call(Request.SEND_MESSAGE_V2, send_fields("orders"), b"body").code == Response.SUCCESS
    with serving(tmp_path / "data") as server, attacking(server.port) as attacker:
        assert attacker.call(Request.SEND_MESSAGE_V2, send_fields("orders"), b"body").code == Response.SUCCESS
        assert "unreadable" not in server.log()
