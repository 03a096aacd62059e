"""Of the pages that Spark makes of an error, the line that a person needs."""

import os

import pytest

from latermq.client.session.failures import AccessRefused
from latermq.errors import IllegalMessage, StoreError

PAGE = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
  File "latermq/pipeline/driver/ingest.py", line 126, in _ingest_batch
    write_claim(self._root)
{raised}

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
\tat py4j.reflection.PythonProxyHandler.invoke(PythonProxyHandler.java:108)
"""
JAVA = """py4j.protocol.Py4JJavaError: An error occurred while calling o4578.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: java.io.IOException: it broke
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2935)"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (PAGE.format(raised="OSError: the disk was pulled out"), "OSError: the disk was pulled out"),
        (
            PAGE.format(raised=JAVA),
            "org.apache.spark.SparkException: Job aborted due to stage failure: java.io.IOException: it broke",
        ),
        ("[UNRESOLVED_COLUMN] No such column\nin a tree\n" + PAGE, "[UNRESOLVED_COLUMN] No such column"),
        ("it broke\n\tat java.lang.Thread.run(Thread.java:840)", "it broke"),
    ],
)
def test_the_line_that_tells_most(text: str, line: str) -> None:
    from latermq.pipeline.spark.spark_failures import first_line

    assert first_line(Exception(text)) == line


REFUSED = "User:a has no permission to access Topic:t from 127.0.0.1, no matched policies. An administrator can help"


@pytest.mark.parametrize("before", ["", "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: "])
def test_a_refusal_in_a_task_is_a_refusal_and_promises_no_retry(before: str) -> None:
    from pyspark.errors import PySparkException

    from latermq.pipeline.spark.spark_failures import spark_errors

    text = f"Job aborted\n{before}latermq.client.session.failures.AccessRefused: {REFUSED}\n\tat java.lang.Thread"
    with pytest.raises(AccessRefused) as refused, spark_errors("the job"):
        raise PySparkException(text)
    assert str(refused.value) == f"the job failed: {REFUSED}"
    with pytest.raises(StoreError, match=r"full\. The job is retried"), spark_errors("the job"):
        raise PySparkException("latermq.errors.Busy: the store is full")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("AccessRefused", AccessRefused), ("IllegalMessage", IllegalMessage), ("redacted", StoreError), ("", StoreError)],
)
def test_an_error_of_another_process_keeps_its_class(name: str, kind: type[Exception]) -> None:
    from latermq.pipeline.bulk.pieces import error_class

    assert error_class(name) is kind


def test_outside_a_worker_of_spark_no_traceback_is_hidden() -> None:
    from latermq.pipeline.source.plain_errors import plain_errors

    with pytest.raises(IllegalMessage), plain_errors():
        raise IllegalMessage("bad")
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
