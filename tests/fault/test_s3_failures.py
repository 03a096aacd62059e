"""A store that is slow, fails and goes away: no timer is lost or doubled, and near timers do not notice."""

import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from latermq.message.properties import DUE_MS
from latermq.message.record import Message
from tests.fault.test_pipeline_end_to_end import SLOW_S, FarLoad, Scale
from tests.fault.test_s3_storm import scene
from tests.fault.test_timer_kills import loading
from tests.interop.waiting import wait_until
from tests.support.needs import LONG
from tests.support.s3.s3_proxy import S3Proxy, s3_proxy
from tests.support.s3.s3_server import s3_server, variables

pytestmark = pytest.mark.real
FAILING_RUN = Scale(*((20_000, 240_000, 90_000, 60_000, 15_000) if LONG else (600, 60_000, 15_000, 36_000, 12_000)), ())
# A broker that waited for the store before it delivered would be late by as long as the store is away.
NEAR_LATENESS_MS = 1_500


@pytest.mark.timeout(1_200)
def test_a_slow_and_failing_store_loses_nothing_and_delays_no_near_timer(tmp_path: Path) -> None:
    scale = FAILING_RUN
    load = FarLoad(Random(20_33), scale)
    with (
        s3_server(tmp_path / "s3") as bucket,
        s3_proxy(bucket.port) as proxy,
        variables(bucket.environment(proxy.port)),
        scene(tmp_path, bucket, scale) as scenery,
    ):
        with loading(load, scenery.server.namesrv) as running:  # type: ignore[arg-type]
            wait_until(lambda: load.began_ms, 30, "the beginning")
            proxy.faults.delay_s, proxy.faults.share = 0.05, 0.3
            wait_until(lambda: _all_happened(proxy), scale.span_ms / 1000, "every kind of fault")
            time.sleep(5)
            proxy.faults.is_down = True
            time.sleep(8)
            proxy.faults.is_down, proxy.faults.share = False, 0.1
            time.sleep(8)
            proxy.faults.delay_s = proxy.faults.share = 0.0
            running.result(SLOW_S)
        found = scenery.finish(load, scale)
        printed = scenery.drivers.now.printed() if scenery.drivers.now is not None else ""
    print(f"{dict(proxy.faults.seen)}")
    near = [message for message in found if _ahead_ms(message) < scale.near_horizon_ms - scale.window_ms]
    lateness_ms = sorted(message.store_timestamp_ms - int(message.properties[DUE_MS]) for message in near)
    p99_ms = lateness_ms[len(lateness_ms) * 99 // 100]
    print(
        f"{len(near)} near timers: late by p50 {lateness_ms[len(near) // 2]} ms, p99 {p99_ms} ms, {lateness_ms[-1]} ms"
    )
    assert p99_ms < NEAR_LATENESS_MS
    # Each reason once, until it changes.
    reasons = [line.partition(" stalled: ")[2] for line in printed.splitlines() if " stalled: " in line]
    repeated = [reason for reason, times in Counter(reasons).items() if times > 3]
    assert repeated == []
    assert "Traceback" not in printed


def _all_happened(proxy: S3Proxy) -> bool:
    return all(proxy.faults.seen[kind] for kind in proxy.faults.kinds)


def _ahead_ms(message: Message) -> int:
    return int(message.properties.get(DUE_MS, "0")) - message.born_timestamp_ms
