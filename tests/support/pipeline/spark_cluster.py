"""A Spark standalone cluster on loopback, from the pyspark distribution: one master and some workers."""

import contextlib
import importlib.util
import os
import signal
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop.ports import HOST, accepts_connections, free_port
from tests.interop.waiting import wait_until
from tests.support.serving import children_of, is_alive

START_TIMEOUT_S = 120.0
# The spark-defaults.conf of a cluster on very small machines.
_DEFAULTS = f"""
spark.driver.host {HOST}
spark.driver.bindAddress {HOST}
spark.executor.cores 1
spark.executor.memory 600m
spark.sql.shuffle.partitions 2
spark.databricks.delta.snapshotPartitions 2
spark.ui.enabled false
"""


@dataclass(frozen=True)
class Cluster:
    """The cluster's address, and the environment that a process needs to use it."""

    master: str
    environment: dict[str, str]
    work_folders: list[Path]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def executors(self) -> int:
        """The number of executors that its workers have started."""
        return sum(len(list(folder.glob("app-*/*"))) for folder in self.work_folders)

    def kill_executors(self) -> int:
        """Kill all executors with their Python workers, as machines do that fail. Returns how many processes ended."""
        pids = [pid for worker in self.workers for pid in children_of(worker.pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(pids)


@contextlib.contextmanager
def spark_cluster(folder: Path, workers: int, without: Collection[str] = ()) -> Iterator[Cluster]:
    """Run a cluster with its files in a folder. Each worker has one core.

    `without` names variables of this process that its machines do not have.
    """
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    conf = folder / "conf"
    conf.mkdir(parents=True)
    (conf / "spark-defaults.conf").write_text(_DEFAULTS)
    environment = {
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(conf),
        "SPARK_LOCAL_IP": HOST,
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    port = free_port()
    cluster = Cluster(f"spark://{HOST}:{port}", environment, [folder / f"work-{number}" for number in range(workers)])
    with contextlib.ExitStack() as stack:

        def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            command = [str(home / "bin" / "spark-class"), *arguments]
            own = {name: value for name, value in os.environ.items() if name not in without}
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=own | environment)
            stack.callback(_stop, process)
            return process

        deploy = "org.apache.spark.deploy"
        listen_options = ("--host", HOST, "--webui-port", "0")
        start("master", f"{deploy}.master.Master", *listen_options, "--port", str(port))
        wait_until(lambda: accepts_connections(port), START_TIMEOUT_S, "Spark's master")
        for work in cluster.work_folders:
            sizes = ("--cores", "1", "--memory", "700m", "--work-dir", str(work))
            command = (f"{deploy}.worker.Worker", *listen_options, *sizes, cluster.master)
            cluster.workers.append(start(work.name, *command))
        log = folder / "master.log"
        wait_until(lambda: log.read_text().count("Registering worker") == workers, START_TIMEOUT_S, "all workers")
        yield cluster


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert not is_alive(process.pid)
