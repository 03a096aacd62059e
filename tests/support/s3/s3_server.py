"""A real S3 server for tests, versitygw over a temporary folder, on a free port and with random credentials.

`python -m tests.support.s3.s3_server` builds it, which takes minutes and is done once.
"""

import contextlib
import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyarrow import fs

from tests.interop.ports import HOST, accepts_connections, free_port
from tests.interop.toolchain import build_s3_server
from tests.interop.waiting import wait_until

START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
BUCKET = "timers"


@dataclass(frozen=True)
class S3Server:
    """A running server with one bucket."""

    port: int
    folder: Path  # each object is a file below it
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)

    @property
    def metadata(self) -> Path:
        """The folder with the attributes of each object."""
        return self.folder.with_name("metadata")  # not every file system has extended attributes

    @property
    def uri(self) -> str:
        return f"s3a://{BUCKET}/pipeline"

    def environment(self, port: int | None = None) -> dict[str, str]:
        """The variables for a client. With a port, that of a proxy in front of the server."""
        return {
            "AWS_ENDPOINT_URL": f"http://{HOST}:{port or self.port}",
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            # The machine may have credentials of its own, which are nobody's business here.
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }


@contextlib.contextmanager
def s3_server(folder: Path, port: int = 0) -> Iterator[S3Server]:
    """Run a server until the end of the block. Its data are in the folder."""
    objects = folder / "objects"
    objects.mkdir(parents=True)
    server = S3Server(port or free_port(), objects, secrets.token_hex(10), secrets.token_hex(20))
    with _process(server, folder):
        _create_bucket(server)
        yield server


@contextlib.contextmanager
def _process(server: S3Server, folder: Path) -> Iterator[None]:
    program = build_s3_server()
    server.metadata.mkdir(exist_ok=True)
    # The credentials go by the environment: every user of the machine can read a command line.
    environment = {
        "PATH": os.environ["PATH"],
        "ROOT_ACCESS_KEY": server.access_key,
        "ROOT_SECRET_KEY": server.secret_key,
        **{name: value for name, value in os.environ.items() if name.startswith("LATERMQ_TEST")},
    }
    # Without --keep-alive, with which version 1.8.0 cannot parse one request in ten of Arrow's.
    command = [str(program), "--quiet", "--port", f"{HOST}:{server.port}"]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "posix", "--sidecar", str(server.metadata), str(server.folder)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until(
                lambda: accepts_connections(server.port) or process.poll() is not None, START_TIMEOUT_S, "the S3 server"
            )
            assert process.poll() is None, (folder / "server.log").read_text()
            yield
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _create_bucket(server: S3Server) -> None:
    arrow(server, allow_bucket_creation=True).create_dir(BUCKET)


def arrow(server: S3Server, **options: bool) -> fs.FileSystem:
    """A client of the tests' own."""
    return fs.S3FileSystem(
        access_key=server.access_key,
        secret_key=server.secret_key,
        endpoint_override=f"{HOST}:{server.port}",
        scheme="http",
        region="us-east-1",
        **options,
    )


@contextlib.contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables until the end of the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


if __name__ == "__main__":
    build_s3_server()
