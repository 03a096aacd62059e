"""One Spark session for all tests that need it, because its start takes five seconds."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from latermq.config import PipelineConfig
from tests.support.needs import need_tool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """Spark as the pipeline starts it on one machine. It ends with its JVM after the tests."""
    need_tool("java", "Spark requires it")
    # Imported here, because most tests need no Spark and the import takes a second.
    from latermq.pipeline.spark.session import close_session, open_session

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SPARK_LOCAL_DIRS", str(tmp_path_factory.mktemp("spark")))
        # Tests are too short for an optimizing compiler.
        environment.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
        session = open_session(PipelineConfig(master="local[2]"))
        yield session
        close_session(session)
