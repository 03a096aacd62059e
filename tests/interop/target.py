"""The cluster under test: LaterMQ, or Apache RocketMQ when LATERMQ_INTEROP_TARGET=apache, which tests the tests."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.interop.peer import apache_peer
from tests.support.serving import serving

IS_APACHE = os.environ.get("LATERMQ_INTEROP_TARGET") == "apache"


@dataclass(frozen=True)
class Cluster:
    namesrv: str
    address: str
    log_tail: Callable[[], str]
    name: str = "DefaultCluster"
    broker: str = "broker-a"


@contextlib.contextmanager
def running_cluster(folder: Path, *, levels: str = "", max_delay_s: int = 0) -> Iterator[Cluster]:
    """Run the target in `folder`, with other delay levels or another limit for timers if they are given."""
    if IS_APACHE:
        peer_settings = {"messageDelayLevel": levels} if levels else {}
        peer_settings |= {"timerMaxDelaySec": str(max_delay_s)} if max_delay_s else {}
        with apache_peer(folder, peer_settings, heap="1g") as peer:
            yield Cluster(peer.namesrv, peer.broker_address, peer.log_tail)
    else:
        settings = ["--set", f"timer.levels={levels}"] if levels else []
        settings += ["--set", f"timer.max_delay={max_delay_s}s"] if max_delay_s else []
        with serving(folder, "--no-http", "--no-grpc", "--no-pipeline", *settings) as server:
            yield Cluster(server.namesrv, server.broker, server.log)
