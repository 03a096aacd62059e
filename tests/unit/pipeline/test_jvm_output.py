"""What Spark's JVM prints: the greeting is dropped, and the rest is passed on and kept for the reason of a failure."""

import io

import pytest

from latermq.errors import ConfigError
from latermq.pipeline.spark.jvm_output import JvmOutput

GREETING = b"""WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/17 05:17:25 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.0.1
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
Setting Spark log level to "ERROR".
Warning: Ignoring non-Spark config property: my.own
NOTE: Picked up JDK_JAVA_OPTIONS: -XX:TieredStopAtLevel=1
"""


def test_the_greeting_is_dropped_and_errors_are_shown() -> None:
    shown: list[str] = []
    output = JvmOutput(shown.append)
    output._read(io.BytesIO(GREETING + b"Terminating due to java.lang.OutOfMemoryError\n" + b"x" * 10_000 + b"\n"))
    assert shown[0] == "Terminating due to java.lang.OutOfMemoryError"
    assert len("".join(shown[1:])) == 10_000
    assert list(output.last_lines) == shown
    assert output.tells_of_lack_of_memory()
    assert not JvmOutput().tells_of_lack_of_memory()


def test_the_reason_of_a_failure_is_its_last_cause_rather_than_a_frame_of_its_stack_trace() -> None:
    output = JvmOutput()
    assert output.last_message() == ""
    output._read(io.BytesIO(GREETING))
    assert output.last_message() == ""
    trace = b"""Exception in thread "main" java.lang.ExceptionInInitializerError
\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)
Caused by: java.net.UnknownHostException: web-1: Name or service not known
\tat java.base/java.net.Inet6AddressImpl.lookupAllHostAddr(Native Method)
\t... 17 more
"""
    cause = "java.net.UnknownHostException: web-1: Name or service not known"
    for text in (trace, trace.replace(b"\t", rb"\t"), trace.replace(b"\t", b"    ")):
        output._read(io.BytesIO(text))
        assert output.last_message() == cause


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # PySpark leaves its pipe open then
def test_a_jvm_that_does_not_start_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:+NoSuchOption")
    with pytest.raises(ConfigError, match=r"Spark's JVM cannot start: ."):
        JvmOutput().launch_jvm({})
