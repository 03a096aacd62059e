"""A process that writes Delta commits to S3 through a log store, in a race with others of its kind.

`python -m tests.support.s3.commit_race STORE FOLDER NAME` reads versions from stdin, one per line. For each it tries to
write the commit, and prints whether the store says that the commit was made.
"""

import os
import sys
from typing import Any

from latermq.pipeline.spark.jars import delta_jars
from latermq.pipeline.spark.s3_jars import s3_jars
from latermq.pipeline.timeline.s3 import hadoop_settings

MADE, REFUSED = "made", "refused"


def open_jvm() -> Any:
    """The gateway to a JVM with the jars for S3. Without a session it starts in a fifth of the time."""
    from pyspark.java_gateway import launch_gateway

    jars = ":".join(map(str, [*delta_jars(), *s3_jars()]))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-class-path {jars} pyspark-shell"
    return launch_gateway()  # type: ignore[no-untyped-call]


def hadoop_configuration(jvm: Any) -> Any:
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    for name, value in hadoop_settings().items():
        configuration.set(name, value)
    configuration.set("fs.s3a.input.stream.type", "classic")
    return configuration


class Writer:
    """A log store, and commits that name their writer."""

    def __init__(self, jvm: Any, store: str, folder: str, name: str) -> None:
        self._jvm = jvm
        self._folder = folder
        self._name = name
        self._configuration = hadoop_configuration(jvm)
        kind = jvm
        for part in store.split("."):
            kind = getattr(kind, part)
        self._store = kind(self._configuration)

    def write(self, version: int) -> str:
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self._folder}/{version:020d}.json")
        lines = self._jvm.java.util.ArrayList()
        lines.add(f"{self._name} {version}")
        try:
            self._store.write(path, lines.iterator(), False, self._configuration)
        except Exception as error:
            if "FileAlreadyExists" not in str(error):
                raise
            return REFUSED
        return MADE


def main() -> None:
    gateway = open_jvm()
    try:
        writer = Writer(gateway.jvm, *sys.argv[1:])
        for line in sys.stdin:
            print(writer.write(int(line)), flush=True)
    finally:
        gateway.shutdown()


if __name__ == "__main__":
    main()
