"""The time until a starting broker accepts a message, measured over a plain socket without a client's pauses."""

import contextlib
import socket
import time

from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import FrameReader, encode_frame

_PAUSE_S = 0.01
_RESPONSE_TIMEOUT_S = 5.0


def first_accepted_s(address: str, topic: str, timeout_s: float) -> float:
    """Send until a send is accepted. Return the monotonic time of its response."""
    host, _, port = address.partition(":")
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError):
            if _is_accepted((host, int(port)), topic):
                return time.monotonic()
        _pause()
    raise TimeoutError(f"{address} accepted no send within {timeout_s:g} s")


def _is_accepted(address: tuple[str, int], topic: str) -> bool:
    fields = {
        "a": "bench_producer", "b": topic, "c": "TBW102", "d": "8", "e": "0", "f": "0", "g": "0", "h": "0",
        "i": f"UNIQ_KEY\x01{time.monotonic_ns():032X}\x02", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    reader = FrameReader()
    with socket.create_connection(address, _RESPONSE_TIMEOUT_S) as connection:
        connection.sendall(encode_frame(Request.SEND_MESSAGE_V2, 1, fields=fields, body=b"x"))
        while piece := connection.recv(65_536):
            for reply in reader.feed(piece):
                return reply.code == Response.SUCCESS
    return False


def _pause() -> None:
    time.sleep(_PAUSE_S)
