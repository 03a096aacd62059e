"""A store that lacks what the pipeline needs is refused with a sentence, before anything depends on it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from latermq.errors import ConfigError
from latermq.pipeline.timeline.root import open_root
from latermq.pipeline.timeline.store_probe import PROBES, probe_files
from latermq.server.broker.pipeline_folder import DriverTokens
from tests.interop.ports import HOST, free_port
from tests.support.needs import need_tool
from tests.support.pipeline.pipeline_process import pipeline_process
from tests.support.s3.s3_proxy import S3Proxy, S3Request, s3_proxy
from tests.support.s3.s3_server import BUCKET, S3Server, arrow, s3_server, variables

SLOW_S = 300.0


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def proxy(bucket: S3Server) -> Iterator[S3Proxy]:
    """A proxy that the clients of this process use."""
    with s3_proxy(bucket.port) as proxy, variables(bucket.environment(proxy.port)):
        yield proxy


def file_of(bucket: S3Server, request: S3Request) -> Path:
    return bucket.folder / request.key


def is_probe(request: S3Request) -> bool:
    return f"/{PROBES}/" in request.key and not request.key.endswith("/")


def older(request: S3Request) -> bytes | None:
    """What a store with a cache in front of it would return."""
    if request.method != "GET" or not is_probe(request):
        return None
    return b'HTTP/1.1 200 OK\r\nETag: "x"\r\nConnection: close\r\nContent-Length: 5\r\n\r\nolder'


def test_a_complete_store_passes_and_nothing_of_the_probe_is_left(bucket: S3Server, proxy: S3Proxy) -> None:
    probe_files(open_root(bucket.uri))
    assert proxy.faults.seen["requests"] > 5
    left = arrow(bucket).get_file_info(fs.FileSelector(f"{BUCKET}/pipeline/{PROBES}", recursive=True))
    assert left == []


def test_a_store_that_returns_old_files_is_refused(bucket: S3Server, proxy: S3Proxy) -> None:
    proxy.faults.answer = older
    with pytest.raises(ConfigError, match="cannot read a file right after it is written"):
        probe_files(open_root(bucket.uri))


def test_a_store_that_lists_too_little_is_refused(bucket: S3Server, proxy: S3Proxy) -> None:
    def hide(request: S3Request) -> None:
        if request.method == "GET" and request.key.rstrip("/") == BUCKET:
            for probe in (bucket.folder / BUCKET / "pipeline" / PROBES).glob("*"):
                probe.unlink()

    proxy.faults.before = hide
    with pytest.raises(ConfigError, match="cannot list a file right after it is written"):
        probe_files(open_root(bucket.uri))


def test_a_store_that_deletes_nothing_is_refused(bucket: S3Server, proxy: S3Proxy) -> None:
    proxy.faults.answer = lambda request: (
        b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n" if request.method == "DELETE" else None
    )
    with pytest.raises(ConfigError, match="cannot delete a file"):
        probe_files(open_root(bucket.uri))


def test_a_broker_refuses_a_driver_if_its_own_view_of_the_store_is_incomplete(bucket: S3Server, proxy: S3Proxy) -> None:
    proxy.faults.answer = older
    with pytest.raises(ConfigError, match="cannot read a file right after it is written"):
        DriverTokens(bucket.uri, "store")._read()
    proxy.faults.answer = lambda _request: None
    assert DriverTokens(bucket.uri, "store")._read() == ""


@pytest.mark.timeout(600)
def test_a_driver_refuses_a_store_without_conditional_writes(bucket: S3Server, proxy: S3Proxy, tmp_path: Path) -> None:
    need_tool("java", "Hadoop's client for S3 runs on it")

    def ignore_condition(request: S3Request) -> None:
        if request.method == "PUT" and "if-none-match" in request.headers:
            file_of(bucket, request).unlink(missing_ok=True)
            shutil.rmtree(bucket.metadata / request.key, ignore_errors=True)

    proxy.faults.before = ignore_condition
    secret = tmp_path / "secret"
    secret.write_text("x" * 40)
    options = ("--set", f"pipeline.secret_file={secret}")
    with pipeline_process(f"{HOST}:{free_port()}", bucket.uri, *options) as driver:
        assert driver.wait_for_exit(SLOW_S) == 2, driver.printed()
        printed = driver.printed()
    assert f"the store of {bucket.uri} cannot write conditionally" in printed
    assert "Traceback" not in printed
    assert bucket.secret_key not in printed
