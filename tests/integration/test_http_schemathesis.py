"""Schemathesis against the API's own OpenAPI document: every operation, and sequences in which answers lead on."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.ports import HOST
from tests.support.http_console import HttpClient, running_console
from tests.support.needs import LONG
from tests.support.serving import serving

# The coverage phase alone makes some ten thousand requests.
PHASES, EXAMPLES = ("examples,coverage,fuzzing,stateful", 60) if LONG else ("fuzzing,stateful", 3)
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "use_after_free", "ensure_resource_availability", "unsupported_method",
)  # fmt: skip

ENVIRONMENT = {
    "COLUMNS": "160", "PYTHONPATH": str(Path(__file__).parents[2]),
    "SCHEMATHESIS_HOOKS": "tests.support.schemathesis_hooks",
}  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpClient]:
    with (
        serving(tmp_path_factory.mktemp("data") / "data") as server,
        running_console(server.namesrv, "http.rate=0", "http.max_page=20") as (_, found),
    ):
        assert found.post("/api/v1/timers", {"topic": "orders", "body": "b", "key": "k", "delay": "1h"}).status == 201
        assert found.post("/api/v1/messages", {"topic": "orders", "body": "b", "key": "k"}).status == 201
        yield found


@pytest.mark.timeout(3_000 if LONG else 300)
def test_no_operation_fails_or_answers_what_is_not_documented(client: HttpClient, tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).parent / "schemathesis"), "run", f"http://{HOST}:{client.port}/openapi.json",
        f"--phases={PHASES}", f"--max-examples={EXAMPLES}", f"--checks={','.join(CHECKS)}", "--seed=1", "--no-color",
        "--generation-database=none", "--no-shrink", "--suppress-health-check=all", "--request-timeout=60",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    for phase in PHASES.split(","):
        assert phase in done.stdout.lower(), "every phase has run"
