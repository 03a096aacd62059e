"""How Spark is set up: small on one machine, left alone on a cluster, and with jars that are there."""

import hashlib
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from latermq.cli.pipeline.timeline_options import has_session
from latermq.config import PipelineConfig, Size
from latermq.errors import ConfigError
from latermq.pipeline.spark import jars
from latermq.pipeline.spark.session import session_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def jar_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    folder = jars.jar_folder()
    folder.mkdir(parents=True)
    for name in jars.PACKAGES:
        (folder / name).touch()
    nothing = hashlib.sha256().hexdigest()
    monkeypatch.setattr(jars, "CHECKSUMS", dict.fromkeys(jars.PACKAGES, nothing))
    return folder


def test_one_machine_gets_few_partitions_and_little_memory(jar_folder: Path) -> None:
    settings = session_settings(PipelineConfig(driver_memory=Size.parse("1GiB")))
    assert settings["spark.driver.memory"] == "1024m"
    assert settings["spark.sql.shuffle.partitions"] == "2"
    assert settings["spark.databricks.delta.snapshotPartitions"] == "2"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.jars"].split(",") == [str(jar_folder / name) for name in jars.PACKAGES]


def test_a_cluster_keeps_its_own_sizes(jar_folder: Path) -> None:
    settings = session_settings(PipelineConfig(master="spark://master:7077"))
    assert not {"spark.sql.shuffle.partitions", "spark.driver.host", "spark.ui.enabled"} & settings.keys()
    assert "spark.sql.extensions" in settings


def test_jars_that_are_missing_are_named_with_the_command_that_fetches_them(jar_folder: Path) -> None:
    missing = next(iter(jars.PACKAGES))
    (jar_folder / missing).unlink()
    with pytest.raises(ConfigError, match=missing) as raised:
        session_settings(PipelineConfig())
    assert "-m latermq.pipeline.spark.jars" in raised.value.hint


def test_the_jars_match_the_packages_that_are_installed() -> None:
    assert "io.delta:delta-spark_4.2_2.13:4.4.0" in jars.PACKAGES.values()


def test_a_session_of_this_process_is_found_from_every_thread(spark: "SparkSession") -> None:
    """Otherwise a command would start another one and stop it afterwards, and with it the only Spark of the process."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(has_session()))
    thread.start()
    thread.join()
    assert found == [True]
