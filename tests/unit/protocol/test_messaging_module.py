"""The generated module of the 5.x protocol is the one that `make proto` writes."""

import subprocess
import sys
from pathlib import Path

import pytest

from latermq.protocol import messaging

PACKAGE = Path(messaging.__file__).parent
PROTO = "latermq/protocol/messaging/messaging.proto"


@pytest.mark.parametrize("name", ["messaging_pb2.py", "messaging_pb2.pyi"])
def test_the_generated_module_matches_its_definition(tmp_path: Path, name: str) -> None:
    root = PACKAGE.parents[2]
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={root}", *outputs, PROTO], check=True)
    generated = tmp_path / "latermq" / "protocol" / "messaging" / name
    assert (PACKAGE / name).read_text() == generated.read_text(), "run `make proto`"
