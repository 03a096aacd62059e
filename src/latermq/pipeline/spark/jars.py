"""The Delta Lake jars: fetched once at set-up and found at every start, so that a start needs no network.

`python -m latermq.pipeline.spark.jars` fetches them into the environment it runs in.
"""

import contextlib
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from latermq.errors import ConfigError

_COMMAND = "latermq.pipeline.spark.jars"
# Delta names each jar after the Spark and Scala versions that it was built for.
_SPARK_SERIES = ".".join(version("pyspark").split(".")[:2])
_DELTA = version("delta-spark")
PACKAGES = {
    f"delta-spark_{_SPARK_SERIES}_2.13-{_DELTA}.jar": f"io.delta:delta-spark_{_SPARK_SERIES}_2.13:{_DELTA}",
    f"delta-storage-{_DELTA}.jar": f"io.delta:delta-storage:{_DELTA}",
}
# SHA-256 of the jars of the versions in pyproject.toml. Spark runs their code with all the driver's permissions. The
# repository, or a cache in front of it, only verifies that the transfer was intact.
CHECKSUMS = {
    "delta-spark_4.2_2.13-4.4.0.jar": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
}


def jar_folder() -> Path:
    """The folder with the jars of this environment."""
    return Path(sys.prefix) / "share" / "latermq" / "jars"


def delta_jars() -> list[Path]:
    """The jars to start Spark with, each verified. Both take 10 ms."""
    return checked_jars(PACKAGES, CHECKSUMS, command=_COMMAND)


def checked_jars(names: Iterable[str], checksums: Mapping[str, str], *, command: str) -> list[Path]:
    """The jars of these names, each verified. `command` is the module that fetches them."""
    jars = [jar_folder() / name for name in names]
    missing = [jar.name for jar in jars if not jar.is_file()]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} not found in {jar_folder()}",
            hint=f"Fetch them with: {sys.executable} -m {command}",
        )
    for jar in jars:
        check_jar(jar, jar.name, checksums, command=command)
    return jars


def check_jar(jar: Path, name: str, checksums: Mapping[str, str] | None = None, *, command: str = _COMMAND) -> None:
    """Refuse a file that is not the jar of this name."""
    expected = (CHECKSUMS if checksums is None else checksums).get(name)
    if expected is None:
        raise ConfigError(
            f"no checksum is known for {name}",
            hint="Install the versions of pyspark and delta-spark in pyproject.toml",
        )
    with jar.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ConfigError(
            f"{jar} has the wrong SHA-256: {found}, not {expected}",
            hint=f"Find out where it came from; fetch it again with: {sys.executable} -m {command}",
        )


def install_jars(
    found: Path, target: Path, packages: Mapping[str, str] = PACKAGES, checksums: Mapping[str, str] | None = None
) -> None:
    """Copy the resolver's jars into the environment, all or none."""
    # The resolver names a jar after its group as well.
    resolved = {name: found / f"{coordinates.partition(':')[0]}_{name}" for name, coordinates in packages.items()}
    for name, jar in resolved.items():
        check_jar(jar, name, checksums)
    target.mkdir(parents=True, exist_ok=True)
    for name, jar in resolved.items():
        # Copy under another name first: an interrupted fetch must not leave a partial jar.
        partial = target / f"{name}.partial"
        shutil.copyfile(jar, partial)
        partial.replace(target / name)


def fetch_jars(
    target: Path,
    packages: Mapping[str, str] = PACKAGES,
    checksums: Mapping[str, str] | None = None,
    then: Callable[[Any], None] = lambda _gateway: None,
) -> None:
    """Fetch the jars with Spark's resolver and keep them. Loads none of them.

    `then` is called with the gateway to the JVM once the jars are in the environment.
    """
    from pyspark.java_gateway import launch_gateway

    with tempfile.TemporaryDirectory() as ivy:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
        try:
            _resolve(gateway.jvm, ivy, packages)
            install_jars(Path(ivy) / "jars", target, packages, checksums)
            then(gateway)
        finally:
            gateway.shutdown()


def _resolve(jvm: Any, ivy: str, packages: Mapping[str, str]) -> None:
    """Fetch the packages alone into `ivy`, from the repositories that this machine's Spark settings name.

    Their other dependencies are part of Spark, or serve catalogs that are not used. This saves 75 MB.
    """
    maven, option, log = jvm.org.apache.spark.util.MavenUtils, jvm.scala.Option, jvm.java.lang.System.err
    settings = jvm.org.apache.spark.SparkConf()
    repositories = option.apply(settings.get("spark.jars.repositories", None))
    file = settings.get("spark.jars.ivySettings", None)
    if file is None:
        ivy_settings = maven.buildIvySettings(repositories, option.apply(ivy), True, log)
    else:
        ivy_settings = maven.loadIvySettings(file, repositories, option.apply(ivy), log)
    no_exclusions = jvm.scala.collection.immutable.List.newBuilder().result()
    coordinates = ",".join(packages.values())
    maven.resolveMavenCoordinates(coordinates, ivy_settings, option.empty(), False, no_exclusions, False, log)


def run_fetch(fetch: Callable[[], None], what: str) -> None:
    """Fetch as a command: a failure ends it with a sentence."""
    try:
        fetch()
    except ConfigError as refused:
        raise SystemExit(refused.remark) from None
    except Exception as failure:  # the JVM has already printed details, and a Python traceback would bury them
        raise SystemExit(
            f"fetching {what} from Maven Central failed: {failure}\n"
            "See the output above. Java has its own certificate store: behind a TLS-intercepting proxy, add the "
            "proxy's CA certificate to Java's cacerts."
        ) from failure


def main() -> None:
    with contextlib.suppress(ConfigError):
        delta_jars()
        return
    run_fetch(lambda: fetch_jars(jar_folder()), ", ".join(PACKAGES.values()))


if __name__ == "__main__":
    main()
