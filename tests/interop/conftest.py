"""A cluster for each module, clients to talk to it, and topics and groups that no other test uses."""

import contextlib
import itertools
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.interop.clients5 import LANGUAGES, Client5
from tests.interop.programs import Program, start_go, start_java
from tests.interop.target import Cluster, running_cluster

_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def java(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The Java client with JSON headers, one process for the module."""
    with start_java(tmp_path_factory.mktemp("java") / "java.log", {"namesrv": cluster.namesrv}) as program:
        yield program


@pytest.fixture(scope="module")
def java_binary(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The Java client with the binary form of headers."""
    log = tmp_path_factory.mktemp("java_binary") / "java.log"
    with start_java(log, {"namesrv": cluster.namesrv}, binary_headers=True) as program:
        yield program


@pytest.fixture(params=["json", "binary"])
def client(request: pytest.FixtureRequest) -> Program:
    """The Java client with either form of headers."""
    program: Program = request.getfixturevalue("java" if request.param == "json" else "java_binary")
    return program


@pytest.fixture(scope="module")
def go(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The Go client, one process for the module."""
    with start_go(tmp_path_factory.mktemp("go") / "go.log", {"namesrv": cluster.namesrv}) as program:
        yield program


@pytest.fixture
def new_java(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[[], Program]]:
    """Starts further processes of the Java client, for tests in which processes come and go."""
    with contextlib.ExitStack() as running:
        count = itertools.count()

        def start() -> Program:
            log = tmp_path / f"java{next(count)}.log"
            return running.enter_context(start_java(log, {"namesrv": cluster.namesrv}))

        yield start


@pytest.fixture(scope="module")
def clients5(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Client5]]:
    """Starts the client of a language, one process for the module; its cluster must have a proxy."""
    with contextlib.ExitStack() as running:
        started: dict[str, Client5] = {}

        def start(language: str) -> Client5:
            if language not in started:
                log = tmp_path_factory.mktemp(language) / f"{language}.log"
                started[language] = Client5(language, log, cluster.endpoints)
                running.enter_context(started[language].program)
            return started[language]

        yield start


@pytest.fixture(params=LANGUAGES)
def client5(request: pytest.FixtureRequest, clients5: Callable[[str], Client5]) -> Client5:
    """The official client of the 5.x protocol in each language."""
    return clients5(request.param)


@pytest.fixture
def mixed_topic(request: pytest.FixtureRequest, java: Program) -> str:
    """A topic of this test alone, which takes every type of message."""
    name = _fresh_name("t", request)
    java.call("make_topics", topics=[name], message_type="MIXED")
    return name


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A consumer group of this test alone."""
    return _fresh_name("g", request)


@pytest.fixture
def topic(request: pytest.FixtureRequest, java: Program) -> str:
    """A topic of this test alone, with four queues, known to the name server."""
    name = _fresh_name("t", request)
    java.call("make_topics", topics=[name], queues=4)
    return name


def _fresh_name(kind: str, request: pytest.FixtureRequest) -> str:
    test = re.sub(r"[^A-Za-z0-9]+", "_", request.node.name.removeprefix("test_"))
    return f"{kind}{next(_numbers)}_{test[:60].strip('_')}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the logs beside a failure."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Cluster | Program):
                report.sections.append((f"end of the log of {name}", value.log_tail()))
    return report
