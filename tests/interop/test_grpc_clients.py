"""The clients of grpc-go, grpc-java and grpc-js against our HTTP/2 server: all kinds of calls, with and without TLS."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from latermq.clock import SystemClock
from latermq.tls.certificates import self_signed
from latermq.tls.contexts import server_context
from tests.interop.toolchain import build_go_grpc, build_java_grpc, build_js_grpc
from tests.interop.waiting import wait_until
from tests.support.http2_server import running_listener

# The command of a program, from the address and the certificate for TLS.
Command = Callable[[str, Path | None], list[str]]


def go(address: str, certificate: Path | None) -> list[str]:
    return [str(build_go_grpc()), "check", address, "true" if certificate else "false"]


def java(address: str, certificate: Path | None) -> list[str]:
    return [
        "java",
        "-cp",
        build_java_grpc(),
        "latermq.interop.Check",
        address,
        *([str(certificate)] * bool(certificate)),
    ]


def javascript(address: str, certificate: Path | None) -> list[str]:
    return [*build_js_grpc(), address, *([str(certificate)] * bool(certificate))]


@pytest.mark.parametrize("security", ["plaintext", "TLS"])
@pytest.mark.parametrize("client", [go, java, javascript])
def test_calls_of_a_client_are_served(client: Command, security: str, tmp_path: Path) -> None:
    files = self_signed(tmp_path / "tls", SystemClock().now_ms())
    with running_listener(tls=server_context(str(files.certificate), str(files.key))) as server:
        done = subprocess.run(
            client(server.address, files.certificate if security == "TLS" else None),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
        wait_until(lambda: server.statistics()["connections"] == 0, 20.0, "the client to be gone")
        statistics = server.statistics()
        cancelled = set(server.service.cancelled)
    assert statistics["accepted"] == 1
    assert statistics["calls"] == statistics["held_bytes"] == 0
    assert [name for name in statistics if name.startswith("failed_")] == []
    assert "/test.Service/Wait" in cancelled, "the server ends a call whose deadline has passed"
    if client is not go:
        assert "/test.Service/Flood" in cancelled, "the server learns of a reader that leaves"
