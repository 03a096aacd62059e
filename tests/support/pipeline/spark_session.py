"""One Spark session for all tests that need one: it takes five seconds to start."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from latermq.config import PipelineConfig
from tests.support.needs import need_tool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """Spark as the pipeline starts it on one machine, ended with its JVM when the tests have ended."""
    need_tool("java", "Spark runs on it")
    # Imported here: most tests need no Spark, and to load it takes a second.
    from latermq.pipeline.spark.session import close_session, open_session

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SPARK_LOCAL_DIRS", str(tmp_path_factory.mktemp("spark")))
        # Tests are over before it pays to compile well.
        environment.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
        session = open_session(PipelineConfig(master="local[2]"))
        yield session
        close_session(session)
