"""Commits that replace data files of the timeline by others, through Delta's own transactions.

Delta checks them against every commit since the planned version. If one of the replaced files is gone, the commit fails
and the table is unchanged. Delta's Python functions offer no such commit.

All commits say that they change no data, those of the archive too, whose rows only move. So streams that read the table
pass over them, and appends of ingest do not conflict. With any other commit that removes files they do, because open
source Delta isolates writers completely.
"""

import json
import time
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from latermq.pipeline.timeline.data_files import DataFile
from latermq.pipeline.timeline.sorted_files import WrittenFile

PROVIDER = "latermq"  # says who clustered a file, so that Delta's OPTIMIZE leaves it alone


class FileSwaps:
    """The version of a table for which rewrites are planned, and the commits of these rewrites."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, address)
        self._snapshot = self._log.startTransaction().snapshot()
        self.version = int(self._snapshot.version())

    def commit(self, removed: Sequence[DataFile], added: Sequence[WrittenFile]) -> None:
        """Replace files. Raises ConcurrentDeleteDeleteException if one of them is gone."""
        now_ms = time.time_ns() // 1_000_000
        shared = {"partitionValues": {}, "dataChange": False}
        actions = [
            {
                "remove": {
                    **shared,
                    "path": file.path,
                    "size": file.size_bytes,
                    "deletionTimestamp": now_ms,
                    "extendedFileMetadata": True,
                }
            }
            for file in removed
        ] + [
            {
                "add": {
                    **shared,
                    "path": file.path,
                    "size": file.size_bytes,
                    "modificationTime": now_ms,
                    "stats": file.stats,
                    "clusteringProvider": PROVIDER,
                }
            }
            for file in added
        ]
        options = self._jvm.scala.Option
        transaction = self._log.startTransaction(options.empty(), options.apply(self._snapshot))
        transaction.commit(self._to_seq(actions), self._operation())

    def _to_seq(self, actions: Sequence[dict[str, Any]]) -> Any:
        parse = self._jvm.org.apache.spark.sql.delta.actions.Action.fromJson
        found = self._jvm.java.util.ArrayList()
        for action in actions:
            found.add(parse(json.dumps(action)))
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(found).toSeq()

    def _operation(self) -> Any:
        """What the table's history says about the commit."""
        name = "org.apache.spark.sql.delta.DeltaOperations$Optimize"
        [constructor] = self._log.getClass().getClassLoader().loadClass(name).getConstructors()
        nothing = self._to_seq([])
        arguments = self._jvm.java.util.ArrayList()
        for argument in (nothing, nothing, False, self._jvm.scala.Option.empty(), False):
            arguments.add(argument)
        return constructor.newInstance(arguments.toArray())
