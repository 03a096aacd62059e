"""Of the pages that Spark makes of an error, the line that a person needs."""

import pytest

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
