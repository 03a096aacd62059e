"""All endpoints of a broker and a name server, by the headings of docs/protocol.md."""

from latermq.clock import SimulatedClock
from latermq.config import Config
from latermq.server.handlers.broker_service import BrokerService
from latermq.server.handlers.pipeline import PipelineRequests
from latermq.server.handlers.timers import TimerRequests
from latermq.server.handlers.windows import WindowRequests
from latermq.server.namesrv.name_server import NameServer
from latermq.server.remoting.endpoints import Endpoint
from latermq.server.remoting.stepwise import SlicedRequests
from latermq.server.windows.window_loader import WindowLoader
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.admins import Scene


def name_server_endpoints() -> list[Endpoint]:
    return list(NameServer(Config(), SimulatedClock(), MemoryDisk()).table)


def broker_endpoints() -> dict[str, list[Endpoint]]:
    """Endpoints by the heading under which the page lists them."""
    scene = Scene()
    service = BrokerService(scene.broker)

    def no_loader() -> WindowLoader:
        raise AssertionError("no request needs the loader")

    return {
        "producers and consumers": list(service.table),
        "timers": TimerRequests(scene.broker, service.flush_waits, SlicedRequests(1)).endpoints,
        "the pipeline": PipelineRequests(scene.broker, service.flush_waits).endpoints,
        "windows": WindowRequests(scene.broker, no_loader).endpoints,
        "administration": scene.service.endpoints,
    }
