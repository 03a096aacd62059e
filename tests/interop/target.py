"""The cluster under test: LaterMQ, or Apache RocketMQ when LATERMQ_INTEROP_TARGET=apache, which tests the tests."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.interop.peer import apache_peer
from tests.serving import serving

IS_APACHE = os.environ.get("LATERMQ_INTEROP_TARGET") == "apache"


@dataclass(frozen=True)
class Cluster:
    namesrv: str
    address: str
    log_tail: Callable[[], str]
    name: str = "DefaultCluster"
    broker: str = "broker-a"


@contextlib.contextmanager
def running_cluster(folder: Path, *, levels: str = "") -> Iterator[Cluster]:
    """Run the target in `folder`, with a table of delay levels other than RocketMQ's own if one is given."""
    if IS_APACHE:
        with apache_peer(folder, {"messageDelayLevel": levels} if levels else {}, heap="1g") as peer:
            yield Cluster(peer.namesrv, peer.broker_address, peer.log_tail)
    else:
        settings = ["--set", f"timer.levels={levels}"] if levels else []
        with serving(folder, "--no-http", "--no-grpc", "--no-pipeline", *settings) as server:
            yield Cluster(server.namesrv, server.broker, server.log)
