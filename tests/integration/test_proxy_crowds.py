"""Many clients of a proxy or a broker that is killed: all of them go on, in bounded memory."""

import asyncio
import os
import resource
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import grpc

from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.server.proxy.calls.call_table import SERVICE
from tests.security.attacker import resident_bytes
from tests.support.grpc_client import grpc_client
from tests.support.needs import LONG
from tests.support.proxy_messages import handle_of, new_message, receive_request, send
from tests.support.serving import Server, serving
from tests.support.telemetry_crowd import TelemetryCrowd, consumer_settings

CLIENTS = 10_000 if LONG else 1_000
GROUPS = 100
MAX_BYTES_PER_CLIENT = 24_576
TIMEOUT_S = 120.0
RECEIVERS = 5_000 if LONG else 500
CONSUMING_GROUPS, CONNECTIONS, MESSAGES = 10, 10, 40


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


class ReceivingCrowd:
    """Receivers that wait for messages all the time, whatever fails, and acknowledge what they get."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.received: Counter[tuple[str, bytes]] = Counter()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, stack: AsyncExitStack) -> None:
        channels = [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(self._address, options=[("grpc.use_local_subchannel_pool", 1)])
            )
            for _ in range(CONNECTIONS)
        ]
        for number in range(RECEIVERS):
            group = f"receivers-{number % CONSUMING_GROUPS}"
            channel = channels[number // CONSUMING_GROUPS % CONNECTIONS]
            self._tasks.append(asyncio.create_task(self._receive(channel, group)))

    async def wait_for(self, bodies: set[bytes]) -> None:
        """Wait until each group has each of these messages."""
        wanted = {(f"receivers-{group}", body) for group in range(CONSUMING_GROUPS) for body in bodies}
        give_up_s = time.monotonic() + TIMEOUT_S
        while missing := wanted - self.received.keys():
            assert time.monotonic() < give_up_s, f"{len(missing)} of {len(wanted)} messages are missing"
            await asyncio.sleep(0.1)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _receive(self, channel: grpc.aio.Channel, group: str) -> None:
        metadata = [("x-mq-client-id", f"{group}-{id(channel)}")]
        request = receive_request("crowd", group, 30.0, auto_renew=True)
        receiving = channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage",
            pb.ReceiveMessageRequest.SerializeToString,
            pb.ReceiveMessageResponse.FromString,
        )
        acking = channel.unary_unary(
            f"/{SERVICE}/AckMessage", pb.AckMessageRequest.SerializeToString, pb.AckMessageResponse.FromString
        )
        while True:
            try:
                async for answer in receiving(request, timeout=40.0, metadata=metadata):
                    if answer.HasField("message"):
                        self.received[group, answer.message.body] += 1
                        entry = pb.AckMessageEntry(
                            message_id=answer.message.system_properties.message_id,
                            receipt_handle=handle_of(answer.message),
                        )
                        ack = pb.AckMessageRequest(
                            group=pb.Resource(name=group), topic=pb.Resource(name="crowd"), entries=[entry]
                        )
                        await acking(ack, timeout=20.0, metadata=metadata)
            except grpc.aio.AioRpcError:
                pass
            await asyncio.sleep(0.2)


def test_receivers_that_wait_at_a_killed_broker_get_each_message_once(tmp_path: Path) -> None:
    with serving(tmp_path / "data", grpc=True) as server, grpc_client(server.proxy) as client:

        def send_all(name: str) -> set[bytes]:
            bodies = {f"{name}-{number}".encode() for number in range(MESSAGES)}
            for body in bodies:
                give_up_s = time.monotonic() + TIMEOUT_S
                while send(client, new_message("crowd", body)).status.code != pb.OK:
                    assert time.monotonic() < give_up_s, "the broker is not back"
                    time.sleep(0.2)
            return bodies

        async def main() -> None:
            crowd = ReceivingCrowd(server.proxy)
            async with AsyncExitStack() as stack:
                try:
                    await asyncio.to_thread(send_all, "first")
                    await crowd.start(stack)
                    before = await asyncio.to_thread(send_all, "before")
                    await crowd.wait_for(before)
                    await asyncio.sleep(2)  # all acknowledged
                    os.kill(server.broker_pid(), signal.SIGKILL)
                    after = await asyncio.to_thread(send_all, "after")
                    await crowd.wait_for(after)
                finally:
                    await crowd.end()
            doubled = {key: count for key, count in crowd.received.items() if count > 1}
            assert doubled == {}

        asyncio.run(main())
