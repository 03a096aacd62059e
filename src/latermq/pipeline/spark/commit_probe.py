"""Whether an object store keeps a commit of the table that two drivers write, tried with Spark's own log store."""

import json
import secrets
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from latermq.pipeline.spark.spark_failures import spark_errors
from latermq.pipeline.timeline.root import Root, read_file
from latermq.pipeline.timeline.store_probe import PROBES, delete_probe, require


def probe_commits(spark: SparkSession, root: Root) -> None:
    """Check through Spark's own log store for this table that an existing commit cannot be overwritten.

    The commit must also be there for Arrow, with which brokers and executors read the same store.
    """
    if not root.is_s3:
        return
    path = root.at(PROBES, f"{secrets.token_hex(8)}.json")
    commit = f"{root.uri}{path.removeprefix(root.path)}"
    first, second = (json.dumps({"probe": secrets.token_hex(8)}) for _ in range(2))
    try:
        with spark_errors(f"probing {root.uri}"):
            require(_write_commit(spark, commit, first), root, "create a file that does not exist")
            was_written = _write_commit(spark, commit, second)
        kept = read_file(root, path)
        require(
            not was_written and kept == f"{first}\n".encode(),
            root,
            "write conditionally (If-None-Match of PutObject): two drivers could overwrite each other's commits",
        )
    finally:
        delete_probe(root, path)


def _write_commit(spark: SparkSession, address: str, line: str) -> bool:
    """Write a commit as Delta does. Returns whether it did not exist."""
    context = spark.sparkContext
    jvm: Any = context._jvm
    lines = jvm.java.util.ArrayList()
    lines.add(line)
    # The log store that Delta uses for this table, whatever the settings of the machine say.
    store = getattr(getattr(jvm.org.apache.spark.sql.delta.storage, "LogStore$"), "MODULE$").apply(spark._jsparkSession)
    settings = context._jsc.hadoopConfiguration()
    text = jvm.scala.jdk.javaapi.CollectionConverters.asScala(lines.iterator())
    try:
        store.write(jvm.org.apache.hadoop.fs.Path(address), text, False, settings)
    except Py4JJavaError as error:
        if error.java_exception.getClass().getName() == "java.nio.file.FileAlreadyExistsException":
            return False
        raise
    return True
