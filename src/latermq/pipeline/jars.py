"""The jars of Delta Lake: fetched once at set-up, found at every start, so that starting needs no network.

`python -m latermq.pipeline.jars` fetches them into the environment it runs in.
"""

import contextlib
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from latermq.errors import ConfigError

# Delta names each jar after the Spark and the Scala that it was built for.
_SPARK_SERIES = ".".join(version("pyspark").split(".")[:2])
_DELTA = version("delta-spark")
PACKAGES = {
    f"delta-spark_{_SPARK_SERIES}_2.13-{_DELTA}.jar": f"io.delta:delta-spark_{_SPARK_SERIES}_2.13:{_DELTA}",
    f"delta-storage-{_DELTA}.jar": f"io.delta:delta-storage:{_DELTA}",
}
# What these two ask for beyond each other is in Spark already, or is for catalogs that are not used: 75 MB not fetched.
_NOT_NEEDED = (
    "org.*:*",
    "com.*:*",
    "javax.*:*",
    "commons-*:*",
    "io.airlift:*",
    "io.unitycatalog:*",
    "io.delta:*kernel*",
)


def jar_folder() -> Path:
    """Where the jars of this environment lie."""
    return Path(sys.prefix) / "share" / "latermq" / "jars"


def delta_jars() -> list[Path]:
    """The jars that Spark is started with."""
    jars = [jar_folder() / name for name in PACKAGES]
    missing = [jar.name for jar in jars if not jar.is_file()]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} not found in {jar_folder()}",
            hint=f"Fetch what is missing with: {sys.executable} -m latermq.pipeline.jars",
        )
    return jars


def fetch_jars(target: Path) -> None:
    """Let Spark resolve the jars, and keep them."""
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory() as ivy:
        spark = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.jars.ivy", ivy)
            .config("spark.jars.packages", ",".join(PACKAGES.values()))
            .config("spark.jars.excludes", ",".join(_NOT_NEEDED))
            .getOrCreate()
        )
        spark.stop()
        target.mkdir(parents=True, exist_ok=True)
        for name in PACKAGES:
            # A copy under another name first: a fetch that is cut short leaves no half of a jar.
            partial = target / f"{name}.partial"
            shutil.copyfile(Path(ivy) / "jars" / f"io.delta_{name}", partial)
            partial.replace(target / name)


def main() -> None:
    with contextlib.suppress(ConfigError):
        delta_jars()
        return
    try:
        fetch_jars(jar_folder())
    except Exception as failure:  # the JVM has said more by then, and a Python traceback would only bury it
        raise SystemExit(
            f"{', '.join(PACKAGES.values())} could not be fetched from Maven Central: {failure}\n"
            "See above for what was tried. Java has certificates of its own: behind a proxy that answers for "
            "others, its authority must be in Java's cacerts, too."
        ) from failure


if __name__ == "__main__":
    main()
