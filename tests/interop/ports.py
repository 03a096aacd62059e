"""Free ports on the loopback interface."""

import contextlib
import random
import socket

HOST = "127.0.0.1"
# Below the range that the kernel hands to outgoing connections, which could take a port between our look and its use.
_LOWEST, _HIGHEST = 15_000, 32_000


def free_port(*neighbours: int) -> int:
    """A port that is free now, with the ports at the given distances from it free as well."""
    for _ in range(200):
        port = random.randint(_LOWEST, _HIGHEST)
        if all(_is_free(port + distance) for distance in (0, *neighbours)):
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
