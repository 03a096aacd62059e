"""The programs of docs/clients.md and the Java code of README.md, run as they stand but for the addresses."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.target import IS_APACHE, Cluster, running_cluster_with_proxy
from tests.interop.toolchain import (
    HERE,
    build_java,
    build_java5,
    build_node5,
    build_python5,
    go_program,
)

pytestmark = pytest.mark.skipif(IS_APACHE, reason="the page relies on topics for all types of messages")

ROOT = HERE.parents[1]
SECTION = re.compile(r"^## (?P<title>[^\n]+)\n.*?^```(?P<language>\w+)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS = {
    match["title"]: match["code"] for match in SECTION.finditer((ROOT / "docs" / "clients.md").read_text("utf-8"))
}
README_JAVA = re.findall(r"```java\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), flags=re.DOTALL)
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster_with_proxy(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def command(title: str, source: Path) -> list[str]:
    """The command that runs a program of the page."""
    match title:
        case "Java, 5.x":
            return ["java", "-cp", build_java5(), str(source)]
        case "Java, 4.x":
            return ["java", "-cp", build_java().servers, str(source)]
        case "Go, 5.x":
            return [str(go_program(HERE / "go5", source))]
        case "Node":
            return [build_node5()[0], str(source)]
        case "Python, 5.x":
            return [build_python5()[0], str(source)]
    raise AssertionError(f"no way to run {title}")


FILES = {"Java, 5.x": "Orders.java", "Java, 4.x": "Orders.java", "Go, 5.x": "main.go", "Node": "orders.js"}


def run(title: str, code: str, cluster: Cluster, folder: Path) -> str:
    source = folder / FILES.get(title, "orders.py")
    source.write_text(code.replace("127.0.0.1:9876", cluster.namesrv).replace("127.0.0.1:8081", cluster.endpoints))
    modules = HERE / "node5" / "build" / "node_modules"
    environment = {**os.environ, "HOME": str(folder), "NODE_PATH": str(modules), "JAVA_TOOL_OPTIONS": ""}
    done = subprocess.run(
        command(title, source), env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("title", PROGRAMS)
def test_a_program_of_the_page_receives_what_it_has_sent(title: str, cluster: Cluster, tmp_path: Path) -> None:
    assert run(title, PROGRAMS[title], cluster, tmp_path).splitlines()[-1] == "pay now"


def test_the_page_has_a_program_for_every_client() -> None:
    assert list(PROGRAMS) == ["Java, 5.x", "Go, 5.x", "Node", "Python, 5.x", "Java, 4.x"]


@pytest.mark.parametrize("number", range(len(README_JAVA)))
def test_the_java_code_of_the_readme_sends(number: int, cluster: Cluster, tmp_path: Path) -> None:
    code = README_JAVA[number]
    imports = """\
        import org.apache.rocketmq.client.apis.*;
        import org.apache.rocketmq.client.apis.producer.*;
    """
    if "9876" in code:
        imports = """\
            import org.apache.rocketmq.client.producer.*;
            import org.apache.rocketmq.common.message.*;
        """
    body = f"public static void main(String[] a) throws Exception {{ {code} System.exit(0); }}"
    wrapped = f"{imports}class Example {{ {body} }}"
    run("Java, 4.x" if "9876" in code else "Java, 5.x", wrapped, cluster, tmp_path)
