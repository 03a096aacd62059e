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
from tests.support.s3.s3_proxy import s3_proxy
from tests.support.s3.s3_server import BUCKET, S3Server, arrow, s3_server

VERSIONS = 3_000 if LONG else 100
WRITERS = ("first", "second")


def writer(bucket: S3Server, store: str, folder: str, name: str, port: int = 0) -> "subprocess.Popen[str]":
    """A process that writes commits through a log store of Delta."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.s3.commit_race", store, f"s3a://{BUCKET}/{folder}", name],
        env={**os.environ, **bucket.environment(port)},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _ask(process: "subprocess.Popen[str]", version: int) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{version}\n")
    process.stdin.flush()


def _answer(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def race(bucket: S3Server, store: str, versions: int) -> tuple[list[int], dict[str, int]]:
    """Have two processes write each version at the same time.

    Returns the versions that not exactly one process says it has written, and how many commits of each were replaced.
    """
    folder = store.rpartition(".")[2]
    disputed, replaced, files = [], dict.fromkeys(WRITERS, 0), arrow(bucket)
    with ExitStack() as stack:
        writers = {name: stack.enter_context(writer(bucket, store, folder, name)) for name in WRITERS}
        for version in range(versions):
            for process in writers.values():
                _ask(process, version)
            answers = {name: _answer(process) for name, process in writers.items()}
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


@pytest.mark.timeout(900)
def test_a_driver_recognises_its_own_commit_if_the_reply_to_it_was_lost(tmp_path: Path) -> None:
    need_tool("java", "Hadoop's client for S3 runs on it")
    with s3_server(tmp_path) as bucket, s3_proxy(bucket.port) as proxy:
        proxy.faults.concerns = lambda request: "if-none-match" in request.headers
        proxy.faults.share, proxy.faults.kinds = 0.5, ("lost reply",)
        with writer(bucket, LOG_STORE_CLASS, "lost", "first", proxy.port) as process:
            for version in range(20):
                _ask(process, version)
                assert _answer(process) == MADE
            _ask(process, 0)
            assert _answer(process) == MADE, "the same bytes are the same commit"
            assert process.stdin is not None
            process.stdin.close()
        with writer(bucket, LOG_STORE_CLASS, "lost", "second", proxy.port) as process:
            _ask(process, 0)
            assert _answer(process) == REFUSED
            assert process.stdin is not None
            process.stdin.close()
    assert proxy.faults.seen["lost reply"] > 5
