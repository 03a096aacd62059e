"""Commits of two drivers on S3: of each version there is one, and the driver that did not write it learns so."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from latermq.pipeline.spark.s3_jars import LOG_STORE_CLASS
from tests.support.needs import LONG, need_tool
from tests.support.s3.commit_race import MADE, REFUSED
from tests.support.s3.s3_server import BUCKET, S3Server, arrow, s3_server

VERSIONS = 3_000 if LONG else 100
WRITERS = ("first", "second")


def race(bucket: S3Server, store: str, versions: int) -> tuple[list[int], dict[str, int]]:
    """Have two processes write each version at the same time.

    Returns the versions that not exactly one process says it has written, and how many commits of each were replaced.
    """
    folder = store.rpartition(".")[2]
    command = [sys.executable, "-m", "tests.support.s3.commit_race", store, f"s3a://{BUCKET}/{folder}"]
    environment = {**os.environ, **bucket.environment()}
    disputed, replaced, files = [], dict.fromkeys(WRITERS, 0), arrow(bucket)
    with ExitStack() as stack:
        writers = {}
        for name in WRITERS:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            writers[name] = stack.enter_context(
                subprocess.Popen([*command, name], env=environment, text=True, **pipes)  # type: ignore[call-overload]
            )
        for version in range(versions):
            for writer in writers.values():
                writer.stdin.write(f"{version}\n")
                writer.stdin.flush()
            answers = {name: writer.stdout.readline().strip() for name, writer in writers.items()}
            assert set(answers.values()) <= {MADE, REFUSED}, f"{answers} at version {version}"
            if list(answers.values()).count(MADE) != 1:
                disputed.append(version)
            with files.open_input_stream(f"{BUCKET}/{folder}/{version:020d}.json") as stream:
                kept = bytes(stream.read()).decode().split()[0]
            for name, answer in answers.items():
                replaced[name] += answer == MADE and kept != name
    return disputed, replaced


@pytest.mark.timeout(900)
def test_two_drivers_that_write_the_same_version_cannot_replace_each_others_commit(tmp_path: Path) -> None:
    need_tool("java", "Hadoop's client for S3 runs on it")
    with s3_server(tmp_path) as bucket:
        disputed, replaced = race(bucket, LOG_STORE_CLASS, VERSIONS)
    assert disputed == []
    assert replaced == {"first": 0, "second": 0}
