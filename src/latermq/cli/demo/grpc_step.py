"""The step with the 5.x protocol: the proxy is killed between the delivery of a message and its acknowledgement."""

from importlib.util import find_spec

from latermq.cli.demo.checks import check
from latermq.cli.demo.commands import running
from latermq.cli.demo.server import Server

TOPIC, GROUP = "demo-grpc", "demo-grpc-readers"


async def try_proxy(server: Server) -> list[str]:
    """Run the client, and kill the proxy while the client holds a message."""
    if find_spec("grpc") is None:
        return ["left out, because the package grpcio is not installed"]
    async with running("latermq.cli.demo.grpc_client", server.proxy, TOPIC, GROUP) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        line = (await client.stdout.readline()).decode().strip()
        if line:
            killed_pid = server.kill("proxy")
            client.stdin.write(b"\n")
            await client.stdin.drain()
    check(bool(line), "the client received nothing")
    check(int(line) >= 0, f"the message arrived {-int(line)} ms early")
    return [
        f"scheduled with a recall handle, received {line} ms after its due time",
        f"killed proxy process {killed_pid}; its successor accepted the acknowledgement of the same handle",
    ]
