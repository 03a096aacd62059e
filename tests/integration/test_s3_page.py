"""The configuration for S3 in docs/pipeline.md works as it is printed there."""

import re
import shlex
from pathlib import Path

import pytest

from latermq.pipeline.timeline.local_timeline import open_local_timeline
from latermq.pipeline.timeline.root import open_root
from tests.interop.waiting import wait_until
from tests.support.needs import need_tool
from tests.support.s3.s3_server import s3_server, variables
from tests.support.serving import serving

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"
SLOW_S = 300.0


def commands() -> list[list[str]]:
    """The words of the two commands in the section on S3."""
    section = PAGE.read_text().partition("## A timeline on S3")[2].partition("\n## ")[0]
    [block] = re.findall(r"```console\n(.*?)```", section, re.DOTALL)
    return [shlex.split(line.removeprefix("$ ")) for line in block.splitlines()]


@pytest.mark.timeout(600)
def test_the_configuration_in_the_documentation_starts_broker_and_driver_on_a_bucket(tmp_path: Path) -> None:
    need_tool("java", "Spark requires it")
    [export, *assignments], [program, command, data_option, _, *options] = commands()
    assert (export, program, command, data_option) == ("export", "latermq", "serve", "--data")
    with s3_server(tmp_path / "s3") as bucket:
        exact = bucket.environment()
        named = {assignment.partition("=")[0]: exact[assignment.partition("=")[0]] for assignment in assignments}
        isolation = {name: exact[name] for name in exact if name.endswith(("_FILE", "_DISABLED"))}
        # Only what the page names, next to what keeps settings of this machine away.
        with (
            variables({**named, **isolation}),
            serving(tmp_path / "data", *options, "--set", "pipeline.ingest_every=1s", pipeline=True) as server,
        ):
            wait_until(lambda: "ingest of broker-a" in server.log(), SLOW_S, "the start of the ingest")
            root = open_root(bucket.uri)
            wait_until(lambda: open_local_timeline(root, "") is not None, SLOW_S, "the table")
            assert bucket.secret_key not in server.log()
