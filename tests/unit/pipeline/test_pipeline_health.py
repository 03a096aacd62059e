"""The health of the pipeline as operators and monitoring see it, from what brokers and the driver report."""

from typing import Any

import pytest
from prometheus_client import generate_latest

from latermq.model.pipeline_state import ChosenWindow, PipelineState, WindowState
from latermq.pipeline.driver.driver_metrics import FAMILIES, DriverMetrics
from latermq.pipeline.report.health import BrokerHealth, Health, broker_health
from latermq.protocol.remoting.pipeline import decode_state, encode_state


def _state(**fields: Any) -> PipelineState:
    return PipelineState("s", "b", 3, 40, 0, 100, 5_000, 0, 0, **fields)


def test_a_broker_reports_its_lag_and_who_built_its_windows() -> None:
    windows = [WindowState(1, 9, 0, 10, "spark-1-a"), WindowState(2, 9, 10, 20, "local-2-b"), WindowState(3, 9, 20, 30)]
    last = [
        ChosenWindow(1, 0, 10, "spark-1-a", 3, 40, is_finished=True, took_ms=1_500),
        ChosenWindow(2, 10, 20, "local-2-b"),
    ]
    found = broker_health(
        "b", "h:1", _state(windows=windows, lag_ms=7, deadline_ms=18, built_by={"spark": 5}, last_windows=last)
    )
    assert (found.lag_entries, found.lag_ms, found.epoch) == (60, 7, 3)
    assert (found.windows_ready, found.windows_waiting, found.deadline_ms) == (2, 1, 18)
    assert [(one.window, one.built_by, one.epoch, one.rows, one.is_finished) for one in found.last_windows] == [
        (1, "spark", 3, 40, True),
        (2, "local", None, None, False),
    ]
    assert [(one.built_ms, one.took_ms) for one in found.last_windows] == [(1_501, 1_500), (2, None)]
    assert ChosenWindow(1, 0, 10, "by-hand").built_ms is None
    assert found.built_by == {"spark": 5}


@pytest.mark.parametrize("took_ms", [-1, 1 << 60, 1 << 70])
def test_odd_numbers_of_a_driver_do_not_break_the_state_of_a_broker(took_ms: int) -> None:
    last = [ChosenWindow(1, 0, 10, f"spark-{'9' * 20}-a", took_ms=took_ms), ChosenWindow(2, 10, 20, "spark-5-a")]
    state = decode_state(encode_state(_state(last_windows=last)))
    assert [(one.built_ms, one.took_ms) for one in state.last_windows] == [(None, None), (5, None)]


def test_a_broker_that_never_had_a_driver_has_no_lag() -> None:
    state = _state()
    state.epoch = 0
    assert broker_health("b", "h:1", state).lag_entries == 0


def test_the_pipeline_is_good_only_with_a_driver_that_works_and_brokers_that_answer() -> None:
    def is_good(driver: dict[str, Any] | None = None, **broker: Any) -> bool:
        return Health(timeline="t", driver=driver, brokers=[BrokerHealth(broker="b", address="h:1", **broker)]).is_good

    working, stalled = {"brokers": [{"error": ""}]}, {"brokers": [{"error": "disk full"}]}
    assert is_good(working)
    assert not is_good(None)
    assert not is_good(stalled)
    assert not is_good(working, error="gone")
    assert not is_good(working, keeps_far_timers=True)


def test_the_driver_exports_every_metric_from_its_description() -> None:
    broker = {"broker": "b", "error": "x", "lag_entries": 4, "lag_ms": 9, "ingested": 7, "windows_built": 2}
    found = {
        "brokers": [{**broker, "windows_waiting": 1}, {"broker": "new", "error": "", "windows_built": 0}],
        "compactions": 3,
        "last_compaction": {"duration_s": 1.5},
        "control_connections": 1,
        "control_refused": 8,
    }
    text = generate_latest(DriverMetrics(lambda: found)).decode()
    for family in FAMILIES:
        assert f"\n{family.name}" in text, family.name
    assert 'latermq_driver_stalled{broker="b"} 1.0' in text
    assert 'latermq_driver_stalled{broker="new"} 0.0' in text
    assert 'latermq_driver_lag_entries{broker="new"}' not in text  # its broker has not answered yet
    assert "latermq_driver_brokers 2.0" in text
    assert "latermq_driver_compaction_seconds 1.5" in text
    assert "latermq_driver_control_refused_total 8.0" in text
