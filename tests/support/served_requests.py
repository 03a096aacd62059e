"""All endpoints of a broker and a name server, by the headings of docs/protocol.md."""

from typing import cast

from latermq.clock import SimulatedClock
from latermq.config import Config
from latermq.server.broker.composition import broker_service, pipeline_requests, timer_requests, window_requests
from latermq.server.handlers.admin.access_requests import AccessRequests
from latermq.server.namesrv.name_server import NameServer
from latermq.server.remoting.endpoints import Endpoint
from latermq.server.remoting.sliced_requests import SlicedRequests
from latermq.server.windows.window_loader import WindowLoader
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.admins import Scene


def name_server_endpoints() -> list[Endpoint]:
    return list(NameServer(Config(), SimulatedClock(), MemoryDisk()).table)


def broker_endpoints() -> dict[str, list[Endpoint]]:
    """Endpoints by the heading under which the page lists them."""
    scene = Scene()
    service = broker_service(scene.broker)

    return {
        "producers and consumers": list(service.table),
        "timers": timer_requests(scene.broker, service.flush_queue, SlicedRequests(1)).endpoints,
        "the pipeline": pipeline_requests(scene.broker, service.flush_queue).endpoints,
        "windows": window_requests(scene.broker, cast(WindowLoader, None)).endpoints,
        "administration": scene.service.endpoints,
        "users": AccessRequests(None, scene.service.saves, None, None).endpoints,
    }
