"""Ten thousand idle clients cost a server little memory and disturb nobody."""

import asyncio
import contextlib
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from latermq.protocol.remoting.codes import Request, Response
from tests.integration.raw_client import connect

WANTED = 10_000
FEWER = 2_000
MAX_BYTES_PER_CONNECTION = 16_384

# How to start each kind of server, and a request that it answers.
COMMANDS = {
    "namesrv": (("--port", "0"), Request.GET_BROKER_CLUSTER_INFO),
    "broker": (("--port", "0", "--namesrv", "127.0.0.1:1"), Request.GET_BROKER_RUNTIME_INFO),
}


@pytest.mark.parametrize("part", COMMANDS)
def test_ten_thousand_idle_connections_cost_little_memory(tmp_path: Path, part: str) -> None:
    count = connections_that_limits_allow()
    options, request = COMMANDS[part]
    if part == "broker":
        options = ("--data", str(tmp_path), *options)
    settings = [f"server.max_connections={count + 10}", "server.max_connections_per_address=0"]
    options += tuple(f"--set={setting}" for setting in settings)
    command = [sys.executable, "-m", "latermq", part, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().rpartition(":")[2])
            asyncio.run(crowd(port, server.pid, count, request))
        finally:
            server.terminate()
        assert server.wait(30) == 0


async def crowd(port: int, server_pid: int, count: int, request: int) -> None:
    async with connect(port) as first:
        await first.call(request)
        before_bytes = resident_bytes(server_pid)
        with contextlib.ExitStack() as clients:
            for _ in range(count):
                clients.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            # Connections are accepted in order: when a later one is served, the server has all before it.
            async with connect(port) as last:
                for client in (first, last):
                    assert (await client.call(request)).code == Response.SUCCESS
            assert open_files(server_pid) >= count
            per_connection_bytes = (resident_bytes(server_pid) - before_bytes) // count
            print(f"{count} idle connections: {per_connection_bytes} bytes of memory each")
            assert per_connection_bytes < MAX_BYTES_PER_CONNECTION
        assert (await first.call(request)).code == Response.SUCCESS


def connections_that_limits_allow() -> int:
    """How many sockets this process may open, with its limit raised as far as it goes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < WANTED + 2_000:
        return FEWER
    resource.setrlimit(resource.RLIMIT_NOFILE, (WANTED + 2_000 if hard == resource.RLIM_INFINITY else hard, hard))
    return WANTED


def open_files(pid: int) -> int:
    return sum(1 for _ in (Path("/proc") / str(pid) / "fd").iterdir())


def resident_bytes(pid: int) -> int:
    status = (Path("/proc") / str(pid) / "status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024
