"""h2spec's conformance tests, all of them, against our HTTP/2 server with a handler that answers with a body.

h2spec ignores SETTINGS_HEADER_TABLE_SIZE. A server that announces 0, as ours does, must refuse the tables that three of
its tests use (RFC 7541, section 4.2), so these three fail by design, and pass where the table is announced.
"""

import re
import subprocess
from pathlib import Path

import pytest

from latermq.clock import SystemClock
from latermq.protocol.http2.limits import Limits
from latermq.server.http2.transport_limits import TransportLimits
from latermq.tls.certificates import self_signed
from latermq.tls.contexts import server_context
from tests.interop.toolchain import build_h2spec
from tests.support.http2_server import HOST, body_handler, running_listener

TESTS = 146
NEED_A_TABLE = {
    "Sends a dynamic table size update",
    "Sends multiple dynamic table size update",
    "Sends multiple CONTINUATION frames preceded by a HEADERS frame",
}


@pytest.mark.parametrize("security", ["plaintext", "TLS"])
@pytest.mark.parametrize(("table_bytes", "expected"), [(4096, set()), (0, NEED_A_TABLE)])
def test_every_test_of_h2spec_passes(security: str, table_bytes: int, expected: set[str], tmp_path: Path) -> None:
    program = build_h2spec()
    files = self_signed(tmp_path / "tls", SystemClock().now_ms())
    limits = TransportLimits(http2=Limits(header_table_bytes=table_bytes))
    context = server_context(str(files.certificate), str(files.key))
    options = ["--tls", "--insecure"] if security == "TLS" else []
    with running_listener(limits, context, body_handler(b"The body of an answer.")) as server:
        command = [str(program), "-h", HOST, "-p", str(server.port), "--strict", "--timeout", "5", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    counts = re.search(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", done.stdout)
    assert counts is not None, done.stdout + done.stderr
    assert set(re.findall(r"× \d+: (.*)", done.stdout)) == expected, done.stdout[-10_000:]
    assert [int(count) for count in counts.groups()] == [TESTS, TESTS - len(expected), 0, len(expected)]
