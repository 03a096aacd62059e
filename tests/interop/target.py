"""The cluster under test: LaterMQ, or Apache RocketMQ when LATERMQ_INTEROP_TARGET=apache, which tests the tests."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.interop.peer import apache_peer
from tests.support.serving import Server, serving

IS_APACHE = os.environ.get("LATERMQ_INTEROP_TARGET") == "apache"

# Topics for every type of message, as LaterMQ has them, and check-backs early enough for a test.
_PROXY_TESTS_OF_APACHE = {
    "enableMixedMessageType": "true",
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "2000",
}

ROOT, ROOT_SECRET = "root", "r00t"
_AUTH = "org.apache.rocketmq.auth"
COPY_SOON = "access.copy_every=20ms"
USERS_OF_LATERMQ = ("access.enabled=true", f"access.init_user={ROOT}:{ROOT_SECRET}")
USERS_OF_APACHE = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationEnabled": "true",
    "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
    "initAuthenticationUser": json.dumps({"username": ROOT, "password": ROOT_SECRET}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": "inner", "secretKey": "inner-secret"}),
}


@dataclass(frozen=True)
class Cluster:
    namesrv: str
    address: str
    log_tail: Callable[[], str]
    name: str = "DefaultCluster"
    broker: str = "broker-a"
    endpoints: str = ""  # of the proxy for clients of the 5.x protocol
    server: Server | None = None  # LaterMQ's processes
    inner_file: Path | None = None  # the secret of its processes


@contextlib.contextmanager
def running_cluster(
    folder: Path, *, levels: str = "", max_delay_s: int = 0, check_every_s: int = 0, check_after_s: int = 0
) -> Iterator[Cluster]:
    """Run the target in `folder`, with other delay levels, another limit for timers or faster checks if given."""
    if IS_APACHE:
        peer_settings = {"messageDelayLevel": levels} if levels else {}
        if check_every_s:
            after_ms, every_ms = str(check_after_s * 1_000), str(check_every_s * 1_000)
            peer_settings |= {"transactionTimeOut": after_ms, "transactionCheckInterval": every_ms}
        peer_settings |= {"timerMaxDelaySec": str(max_delay_s)} if max_delay_s else {}
        with apache_peer(folder, peer_settings, heap="1g") as peer:
            yield Cluster(peer.namesrv, peer.broker_address, peer.log_tail)
    else:
        settings = ["--set", f"timer.levels={levels}"] if levels else []
        settings += ["--set", f"timer.max_delay={max_delay_s}s"] if max_delay_s else []
        if check_every_s:
            for setting, time_s in (("check_after", check_after_s), ("check_every", check_every_s)):
                settings += ["--set", f"transaction.{setting}={time_s}s"]
        with serving(folder, "--no-http", "--no-grpc", "--no-pipeline", *settings) as server:
            yield Cluster(server.namesrv, server.broker, server.log)


@contextlib.contextmanager
def running_cluster_with_users(folder: Path, *, is_apache: bool = IS_APACHE, proxy: bool = False) -> Iterator[Cluster]:
    """Run the target in `folder`, where requests are checked and only the super user ROOT exists.

    Only LaterMQ has a proxy here.
    """
    if is_apache:
        with apache_peer(folder, USERS_OF_APACHE, heap="1g") as peer:
            yield Cluster(peer.namesrv, peer.broker_address, peer.log_tail)
    else:
        settings = [word for setting in (*USERS_OF_LATERMQ, COPY_SOON) for word in ("--set", setting)]
        with serving(folder, *settings, grpc=proxy) as server:
            yield Cluster(
                server.namesrv,
                server.broker,
                server.log,
                endpoints=server.proxy,
                server=server,
                inner_file=folder / "latermq.inner",
            )


@contextlib.contextmanager
def running_cluster_with_proxy(folder: Path, *settings: str) -> Iterator[Cluster]:
    """Run the target in `folder` with a proxy for clients of the 5.x protocol, and with settings of LaterMQ."""
    if IS_APACHE:
        with apache_peer(folder, _PROXY_TESTS_OF_APACHE, heap="1g") as peer:
            peer.start_proxy()
            yield Cluster(peer.namesrv, peer.broker_address, peer.log_tail, endpoints=peer.endpoints)
    else:
        options = [option for setting in settings for option in ("--set", setting)]
        with serving(folder, "--no-http", *options, grpc=True) as server:
            yield Cluster(server.namesrv, server.broker, server.log, endpoints=server.proxy, server=server)
