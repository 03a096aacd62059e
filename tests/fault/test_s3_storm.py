"""Far timers on a bucket of S3: each arrives once and none early, although processes are killed and the store fails.

The same load as on a local disk (test_pipeline_end_to_end.py), on a real server of S3, with Spark in the driver
and on a cluster.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from latermq.message.record import Message
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.driver.link import BrokerLink
from tests.fault.test_level_kills import read_until
from tests.fault.test_pipeline_end_to_end import (
    SLOW_S,
    Blow,
    Drivers,
    FarLoad,
    Scale,
    deal,
    far_rows,
    frontier_ms,
    moments,
    wait_for_the_last,
)
from tests.fault.test_timer_kills import loading, now_ms
from tests.interop.waiting import wait_until
from tests.support.needs import LONG
from tests.support.pipeline.spark_cluster import spark_cluster
from tests.support.s3.s3_server import S3Server, s3_server, variables
from tests.support.serving import Server, serving

# It takes minutes, so that Spark keeps up with windows on a bucket.
pytestmark = [pytest.mark.real, pytest.mark.skipif(not LONG, reason="runs in the long suite")]
SHORT_RUN = Scale(600, 60_000, 8_000, 36_000, 12_000, (Blow(4, "broker"), Blow(9, "driver")))
LONG_RUN = Scale(
    20_000, 240_000, 90_000, 60_000, 15_000,
    (Blow(15, "broker"), Blow(40, "driver", away_s=10), Blow(80, "broker"), Blow(110, "driver"), Blow(112, "broker"),
     Blow(150, "driver", away_s=20), Blow(190, "broker")),
)  # fmt: skip

# A cluster whose machines fail. It starts executors again, which takes it longer than a driver with Spark inside.
CLUSTER_RUN = Scale(
    4_000, 300_000, 120_000, 100_000, 20_000,
    (Blow(30, "executors"), Blow(60, "broker"), Blow(90, "executors"), Blow(130, "driver"), Blow(170, "executors"),
     Blow(172, "broker")),
)  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """A broker and its drivers on a bucket."""

    server: Server
    drivers: Drivers
    link: BrokerLink
    uri: str

    def finish(self, load: FarLoad, scale: Scale) -> list[Message]:
        """Wait for the last timer, and check that each arrived once and none early. Returns what arrived."""
        pending = asyncio.run(wait_for_the_last(self.server, scale.span_ms / 1000 + 120))
        found = asyncio.run(read_until(self.server, 1))
        # Spark goes on where it was.
        self.drivers.wait_for("ingest of broker-a")
        wait_until(lambda: self.link.state().ingest_offset > load.ledger.acknowledged, SLOW_S, "the ingest of all")
        far = far_rows(self.uri)
        print(f"{far} entries were Spark's; {self.drivers.built()} windows were built by Spark; {len(found)} arrived")
        print(f"{dict(load.ledger.counts)}; changed while {dict(load.changed_while)}")
        load.ledger.check(found)
        assert pending == 0
        assert load.ledger.acknowledged >= scale.count
        assert far > scale.count // 20, "next to nothing was Spark's"
        return found


@contextmanager
def scene(tmp_path: Path, bucket: S3Server, scale: Scale, *more: str) -> Iterator[Scene]:
    """A broker with a driver that keeps up, on the bucket that the environment leads to. `more` are settings."""
    secret = tmp_path / "data" / "pipeline.secret"
    settings = (*scale.settings, "pipeline.compact_every=10m", f"pipeline.secret_file={secret}",
                f"pipeline.timeline={bucket.uri}", *more)  # fmt: skip
    options = [word for setting in settings for word in ("--set", setting)]
    with ExitStack() as lives:
        server = lives.enter_context(serving(tmp_path / "data", *options))
        drivers = Drivers(server.namesrv, bucket.uri, settings, lives)
        drivers.start()
        drivers.wait_for("ingest of broker-a")
        [address] = wait_until(lambda: masters(server.namesrv), 30, "the broker").values()
        link = lives.enter_context(BrokerLink(address, patience_s=60.0))
        wait_until(lambda: frontier_ms(link) < now_ms() + 2 * scale.near_horizon_ms, SLOW_S, "a Spark that keeps up")
        yield Scene(server, drivers, link, bucket.uri)
        assert drivers.now is not None
        for text in (drivers.now.printed(), server.log(), *_command_lines()):
            assert bucket.secret_key not in text


def _command_lines() -> Iterator[str]:
    """What every user of the machine can see of its processes."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield process.read_text(errors="replace")
        except OSError:  # it has just ended
            continue


@pytest.mark.timeout(1_200)
def test_each_timer_on_a_bucket_arrives_once_whoever_is_killed(tmp_path: Path) -> None:
    scale = LONG_RUN if LONG else SHORT_RUN
    load = FarLoad(Random(20_32), scale)
    with (
        s3_server(tmp_path / "s3") as bucket,
        variables(bucket.environment()),
        scene(tmp_path, bucket, scale) as scenery,
    ):
        with loading(load, scenery.server.namesrv) as running:  # type: ignore[arg-type]
            for blow in moments(load, scale):
                assert not running.done() or running.exception() is None
                deal(blow, scenery.server, scenery.drivers)
            running.result(SLOW_S)
        scenery.finish(load, scale)
        _check_secrets(bucket)


@pytest.mark.timeout(1_800)
def test_each_timer_arrives_once_although_executors_of_a_cluster_are_killed(tmp_path: Path) -> None:
    load = FarLoad(Random(20_34), CLUSTER_RUN)
    with (
        s3_server(tmp_path / "s3") as bucket,
        variables(bucket.environment()),
        spark_cluster(tmp_path / "spark", workers=2) as cluster,
        variables(cluster.environment),
        scene(tmp_path, bucket, CLUSTER_RUN, f"pipeline.master={cluster.master}") as scenery,
    ):
        killed = 0
        with loading(load, scenery.server.namesrv) as running:  # type: ignore[arg-type]
            for blow in moments(load, CLUSTER_RUN):
                assert not running.done() or running.exception() is None
                if blow.of == "executors":
                    killed += cluster.kill_executors()
                else:
                    deal(blow, scenery.server, scenery.drivers)
            running.result(SLOW_S)
        scenery.finish(load, CLUSTER_RUN)
        assert killed, "there was no executor"
        _check_secrets(bucket)


def _check_secrets(bucket: S3Server) -> None:
    """Credentials are in no object."""
    secret = bucket.secret_key.encode()
    assert not [file for file in bucket.folder.rglob("*") if file.is_file() and secret in file.read_bytes()]
