"""Malicious requests: to delete the log, and to break the next start. Later steps show whether they did any harm."""

import asyncio

from latermq.cli.demo.checks import check
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command, FrameReader, encode_frame

_TIMEOUT_S = 30.0
_READ_BYTES = 1 << 16


async def send_malicious_requests(broker: str) -> list[str]:
    """Send them on one connection. Each must be refused with an error."""
    host, _, port = broker.rpartition(":")
    nested = b'{"groupName":"evil","attributes":' + b'{"a":' * 1_000 + b"1" + b"}" * 1_001
    attempts: list[tuple[Request, dict[str, str], bytes]] = [
        (Request.DELETE_TOPIC_IN_BROKER, {"topic": "../commitlog"}, b""),
        (Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, nested),
    ]
    remarks = []
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for code, fields, body in attempts:
            writer.write(encode_frame(code, 1, fields=fields, body=body))
            frames, replies = FrameReader(), list[Command]()
            while not replies:
                data = await asyncio.wait_for(reader.read(_READ_BYTES), _TIMEOUT_S)
                check(bool(data), f"{code.name} got no reply")
                replies = frames.feed(data)
            check(replies[0].code != Response.SUCCESS, f"{code.name} succeeded")
            remarks.append(f"{code.name}: {replies[0].remark}")
    finally:
        writer.close()
        await writer.wait_closed()
    return [*remarks, f"{len(attempts)} attempts refused"]
