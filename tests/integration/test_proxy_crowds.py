"""Many clients of a proxy that is killed: all of their telemetry streams are open again, in bounded memory."""

import asyncio
import os
import resource
import signal
from pathlib import Path

from latermq.protocol.messaging import messaging_pb2 as pb
from tests.security.attacker import resident_bytes
from tests.support.grpc_client import grpc_client
from tests.support.needs import LONG
from tests.support.proxy_messages import new_message, send
from tests.support.serving import Server, serving
from tests.support.telemetry_crowd import TelemetryCrowd, consumer_settings

CLIENTS = 10_000 if LONG else 1_000
GROUPS = 100
MAX_BYTES_PER_CLIENT = 24_576
TIMEOUT_S = 120.0


def test_all_clients_of_a_killed_proxy_come_back_at_once(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    options = ("--set", f"proxy.max_connections={CLIENTS + 100}", "--set", "proxy.max_clients_per_address=0")
    with serving(tmp_path / "data", *options, grpc=True) as server:
        idle_bytes = resident_bytes(server.proxy_pid())
        each_bytes = (asyncio.run(kill_their_proxy(server)) - idle_bytes) // CLIENTS
        print(f"{CLIENTS} clients: {each_bytes} bytes each")
        assert each_bytes < MAX_BYTES_PER_CLIENT
        with grpc_client(server.proxy) as client:
            assert send(client, new_message("orders")).status.code == pb.OK


async def kill_their_proxy(server: Server) -> int:
    """Return the size of the next proxy, when it has all clients."""
    host, _, port = server.proxy.rpartition(":")
    crowd = TelemetryCrowd(host, int(port))
    try:
        for number in range(CLIENTS):
            crowd.add(f"client-{number}", consumer_settings("orders", f"group-{number % GROUPS}"))
            if number % 100 == 99:
                await asyncio.sleep(0.02)
        await crowd.wait_for(CLIENTS, TIMEOUT_S)
        os.kill(server.proxy_pid(), signal.SIGKILL)
        await crowd.wait_for_the_cut(TIMEOUT_S)
        await crowd.wait_for(CLIENTS, TIMEOUT_S)
        return resident_bytes(server.proxy_pid())
    finally:
        await crowd.end()
