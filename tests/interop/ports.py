"""Free ports on the loopback interface."""

import contextlib
import os
import random
import socket
from collections import deque

HOST = "127.0.0.1"
# Below the range that the kernel hands to outgoing connections, which could take a port between our look and its use.
# For the same reason each worker of a run has ports of its own, and gives none out again that may not be in use yet.
_LOWEST, _HIGHEST = 15_000, 32_000
_WORKERS = 8
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_SHARE = (_HIGHEST - _LOWEST) // _WORKERS
_given: deque[int] = deque(maxlen=500)


def free_port(*neighbours: int) -> int:
    """A port that is free now, with the ports at the given distances from it free as well."""
    distances = (0, *neighbours)
    first = _LOWEST + _WORKER * _SHARE
    for _ in range(200):
        port = random.randrange(first - min(distances), first + _SHARE - max(distances))
        ports = [port + distance for distance in distances]
        if not set(ports).intersection(_given) and all(map(_is_free, ports)):
            _given.extend(ports)
            return port
    raise OSError(f"no free port with free neighbours {neighbours} found on {HOST}")


def accepts_connections(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
