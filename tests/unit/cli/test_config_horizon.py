"""The near horizon can be set alone: the settings that must fit into it are shortened."""

import pytest

from latermq.config import Config, PipelineConfig, load_config
from latermq.errors import ConfigError


def pipeline(*settings: str) -> PipelineConfig:
    return load_config(settings=[f"pipeline.{setting}" for setting in settings], environment={}).pipeline


@pytest.mark.parametrize("horizon_ms", [1_000, 1_001, 12_000, 40_000, 90_000, 600_000, 3_600_000, 2 * 86_400_000])
def test_a_near_horizon_alone_is_enough(horizon_ms: int) -> None:
    found = pipeline(f"near_horizon={horizon_ms}ms")
    assert found.near_horizon == horizon_ms
    assert 0 < found.window <= horizon_ms // 2
    lead_ms = horizon_ms - found.window
    assert 0 < found.ingest_every <= lead_ms - found.roll_deadline


def test_forty_seconds_leave_time_for_spark_and_for_a_build_without_it() -> None:
    found = pipeline("near_horizon=40s")
    assert (found.window, found.roll_deadline, found.ingest_every) == (13_333, 6_666, 2_500)


def test_a_longer_horizon_changes_nothing_else() -> None:
    assert pipeline("near_horizon=2h") == PipelineConfig(near_horizon=pipeline("near_horizon=2h").near_horizon)
    assert load_config(environment={}) == Config()


def test_explicit_settings_are_kept_and_the_others_fit_them() -> None:
    found = pipeline("near_horizon=40s", "window=5s")
    assert (found.window, found.roll_deadline) == (5_000, 8_750)
    with pytest.raises(ConfigError, match=r"pipeline\.window must be above 0 and at most half"):
        pipeline("near_horizon=40s", "window=30s")
    with pytest.raises(ConfigError, match=r"pipeline\.ingest_every is too long"):
        pipeline("near_horizon=40s", "ingest_every=30s")


def test_environment_variables_are_explicit_settings() -> None:
    found = load_config(settings=["pipeline.near_horizon=40s"], environment={"LATERMQ_PIPELINE_WINDOW": "20s"}).pipeline
    assert found.window == 20_000


@pytest.mark.parametrize("horizon", ["0s", "999ms", "49h"])
def test_a_horizon_out_of_range_is_refused(horizon: str) -> None:
    with pytest.raises(ConfigError, match=r"pipeline\.near_horizon must be 1s to 2d"):
        pipeline(f"near_horizon={horizon}")


def test_memory_with_which_spark_does_not_start_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"pipeline\.driver_memory must be at least 512MiB"):
        load_config(settings=["pipeline.driver_memory=511MiB"], environment={})
    assert load_config(settings=["pipeline.driver_memory=512MiB"], environment={}).pipeline.driver_memory == 512 << 20


def test_a_negative_limit_of_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"pipeline.roll_spark_rows is -1, and must not be negative"):
        pipeline("roll_spark_rows=-1")
    assert pipeline("roll_spark_rows=0").roll_spark_rows == 0
    with pytest.raises(ConfigError, match=r"pipeline.roll_local_rows is 0, and must be at least 1"):
        pipeline("roll_local_rows=0")
