"""What holds for every test: when its turn is, that no process outlives it, how long a series it runs."""

import gc
import mmap
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support.leftovers import kill_all, leftovers_after_grace, mark_session
from tests.support.needs import LONG
from tests.support.pipeline.spark_session import spark as spark  # a fixture, for those who name it

# Of the others, tests/fault has modules that say so themselves.
REAL_TIERS = {"bench", "browser", "integration", "interop", "security"}

COLLECT_ABOVE_BYTES = 1 << 30
# The first test of a worker that uses a Delta table takes several times as long as most others, as Spark loads
# thousands of classes: more than two minutes next to a dozen busy processes.
SPARK_TIMEOUT_S = 1_200

# No deadlines: on a busy machine they measure the neighbours.
_steady = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True)
hypothesis.settings.register_profile("ci", _steady, derandomize=True, max_examples=100)
hypothesis.settings.register_profile("long", _steady, max_examples=5_000)
hypothesis.settings.load_profile("long" if LONG else "ci")

# A shell has its background jobs ignore Ctrl-C, and so would everything that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _spread(items)
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))
        if REAL_TIERS.intersection(item.path.parts):
            item.add_marker(pytest.mark.real)
    if LONG:
        return
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(pytest.mark.skip(reason="runs in `make test-long`"))


def _spread(items: list[pytest.Item]) -> None:
    """The files of all folders mixed: those of one folder would all compute at one time, and of another all wait.

    The last are unit tests, which are short, so that all workers end together.
    """
    folders: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(item.path for item in items):
        folders.setdefault(path.parent, []).append(path)
    places = {
        path: at / len(paths) * (1.0 if "unit" in folder.parts else 0.75)
        for folder, paths in folders.items()
        for at, path in enumerate(paths)
    }
    items.sort(key=lambda item: places[item.path])


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Brokers in memory are large and few objects: without this hundreds pile up before the collector looks."""
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    if resident_pages * mmap.PAGESIZE > COLLECT_ABOVE_BYTES:
        gc.collect()


@pytest.fixture(scope="module", autouse=True)
def collected_after_each_file() -> Iterator[None]:
    """A socket that a test leaves open fails its own file, and not the test that runs when the collector finds it."""
    yield
    gc.collect()


@pytest.fixture(scope="session", autouse=True)
def no_process_outlives_the_session() -> Iterator[None]:
    """Set up before every other fixture, so it looks when all of them have ended what they started."""
    mark = mark_session()
    yield
    found = leftovers_after_grace(mark)
    kill_all(found)
    if found:
        pytest.fail("left running and now killed:\n" + "\n".join(f"  {leftover}" for leftover in found), pytrace=False)
