"""A running cluster with a registered broker. After its start, a broker is not visible to clients at once."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from latermq.client import blocking
from tests.interop.target import running_cluster
from tests.interop.waiting import wait_until


@contextlib.contextmanager
def client_cluster(folder: Path) -> Iterator[str]:
    """The address of the cluster's name server."""
    with running_cluster(folder) as cluster:
        with blocking.Admin(cluster.namesrv) as admin:
            wait_until(admin.brokers, 60, "the broker is registered")
        yield cluster.namesrv
