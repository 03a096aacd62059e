"""Apache's own example programs for pop, unchanged, from the jar that Apache released."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.programs import Program
from tests.interop.target import Cluster
from tests.interop.toolchain import build_java
from tests.interop.waiting import wait_until

# The names in the programs.
TOPIC, GROUP, MESSAGES = "TopicTest", "CID_JODIE_1", 1000
_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_RECEIVED = re.compile(r"\bmsgId=(\w+)")


@contextmanager
def example(name: str, cluster: Cluster, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program of the module rocketmq-example with its output in `log`."""
    command = ["java", *_OPTIONS, f"-Duser.home={log.parent}", f"-Drocketmq.namesrv.addr={cluster.namesrv}"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "-cp", build_java().servers, f"org.apache.rocketmq.example.{name}"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_pop_consumer_of_apaches_examples_receives_every_message_once(
    cluster: Cluster, java: Program, tmp_path: Path
) -> None:
    java.call("make_topics", topics=[TOPIC], queues=4)
    log = tmp_path / "consumer.log"
    with example("simple.PopConsumer", cluster, log) as consumer:
        wait_until(lambda: "Consumer Started." in log.read_text(), 60, "the consumer has started")
        with example("quickstart.Producer", cluster, tmp_path / "producer.log") as producer:
            assert producer.wait(60) == 0

        def received() -> list[str]:
            assert consumer.poll() is None, log.read_text()[-2000:]
            return _RECEIVED.findall(log.read_text())

        wait_until(lambda: len(received()) >= MESSAGES, 60, f"{MESSAGES} messages arrive")
        assert len(set(received())) == len(received()) == MESSAGES

        def acknowledged() -> bool:
            queues = java.call("group_offsets", topic=TOPIC, group=GROUP)["queues"]
            return sum(int(queue["offset"]) for queue in queues) == MESSAGES

        wait_until(acknowledged, 30, "all of them are acknowledged")
