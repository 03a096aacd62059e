"""grpc-go's client against our HTTP/2 server: all kinds of calls, with and without TLS."""

import subprocess
from pathlib import Path

import pytest

from latermq.clock import SystemClock
from latermq.server.http2.certificates import self_signed
from latermq.server.http2.tls_stream import server_context
from tests.interop.toolchain import build_go_grpc
from tests.support.http2_server import running_listener


@pytest.mark.parametrize("security", ["plaintext", "TLS"])
def test_calls_of_grpc_go_are_served(security: str, tmp_path: Path) -> None:
    program = build_go_grpc()
    files = self_signed(tmp_path / "tls", SystemClock().now_ms())
    with running_listener(tls=server_context(str(files.certificate), str(files.key))) as server:
        done = subprocess.run(
            [str(program), "check", server.address, "true" if security == "TLS" else "false"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
        statistics = server.statistics()
    assert statistics["accepted"] == 1
    assert [name for name in statistics if name.startswith("failed_")] == []
