"""docs/protocol.md lists every request code that is served, and no other."""

import re
from pathlib import Path

from latermq.clock import SimulatedClock
from latermq.config import Config
from latermq.protocol.remoting.codes import Request
from latermq.server.handlers.broker_service import BrokerService
from latermq.server.handlers.pending_service import PendingService
from latermq.server.handlers.pipeline_service import PipelineService
from latermq.server.handlers.window_service import WindowService
from latermq.server.namesrv.name_server import NameServer
from latermq.server.remoting.stepwise import LookUps
from latermq.server.windows.window_loader import WindowKeeper
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.admins import Scene

PAGE = Path(__file__).resolve().parents[3] / "docs" / "protocol.md"


def documented(heading: str) -> dict[int, str]:
    section = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    [text] = [part for part in section if part.startswith(heading + "\n")]
    return {int(code): name for code, name in re.findall(r"^\| (\d+) \| (\w+) \|", text, re.MULTILINE)}


def named(codes: dict[int, object]) -> dict[int, str]:
    return {int(code): Request(code).name for code in sorted(codes)}


def test_the_page_lists_what_a_name_server_serves() -> None:
    server = NameServer(Config(), SimulatedClock(), MemoryDisk())
    assert documented("Name server") == named(dict(server.handlers))


def test_the_page_lists_what_a_broker_serves_to_clients() -> None:
    assert documented("Broker: producers and consumers") == named(dict(BrokerService(Scene().broker).handlers))


def test_the_page_lists_what_a_broker_serves_to_operators() -> None:
    assert documented("Broker: administration") == named(dict(Scene().service.handlers))


def test_the_page_lists_what_a_broker_serves_about_timers() -> None:
    broker = Scene().broker
    service = PendingService(broker, BrokerService(broker), LookUps(1))
    assert documented("Broker: timers") == named(dict(service.handlers))


def test_the_page_lists_what_a_broker_serves_to_the_pipeline() -> None:
    broker = Scene().broker
    assert documented("Broker: the pipeline") == named(dict(PipelineService(broker, BrokerService(broker)).handlers))


def test_the_page_lists_what_a_broker_serves_about_windows() -> None:
    def no_keeper() -> WindowKeeper:
        raise AssertionError("nobody asks")

    assert documented("Broker: windows") == named(dict(WindowService(Scene().broker, no_keeper).handlers))
