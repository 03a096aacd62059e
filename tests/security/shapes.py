"""What every served request looks like, read off the handlers: the struct of its header and the type of its body."""

import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

import latermq.protocol.remoting
from latermq.clock import SimulatedClock
from latermq.config import Config
from latermq.server.handlers.broker_service import BrokerService
from latermq.server.handlers.pending_service import PendingService
from latermq.server.handlers.pipeline_service import PipelineService
from latermq.server.handlers.window_service import WindowService
from latermq.server.namesrv.name_server import NameServer
from latermq.server.remoting.stepwise import LookUps
from latermq.server.windows.window_loader import WindowKeeper
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.admins import Scene


@dataclass(frozen=True)
class Shape:
    """A request: its code, the fields of its header with their types, and what its body is decoded as, if it is."""

    code: int
    fields: tuple[msgspec.inspect.Field, ...]
    bodies: tuple[msgspec.inspect.Type, ...]


def broker_shapes() -> list[Shape]:
    """Of all requests that a broker serves."""
    broker = Scene().broker
    service = BrokerService(broker)

    def no_keeper() -> WindowKeeper:
        raise AssertionError("nobody asks")

    handlers: dict[int, Callable[..., Any]] = {
        **service.handlers,
        **Scene().service.handlers,
        **PendingService(broker, service, LookUps(1)).handlers,
        **PipelineService(broker, service).handlers,
        **WindowService(broker, no_keeper).handlers,
    }
    return _shapes(handlers)


def name_server_shapes() -> list[Shape]:
    """Of all requests that a name server serves."""
    return _shapes(NameServer(Config(), SimulatedClock(), MemoryDisk()).handlers)


def _shapes(handlers: Mapping[int, Callable[..., Any]]) -> list[Shape]:
    shapes = []
    for code, handler in sorted(handlers.items()):
        asked, bodies = _asked_by(handler, set())
        structs = asked or _all_headers()  # one that passes on what it gets may be asked anything
        fields = {
            field.encode_name: field
            for struct in structs
            for field in msgspec.inspect.type_info(struct).fields  # type: ignore[attr-defined]
        }
        shapes.append(Shape(int(code), tuple(fields.values()), tuple(map(msgspec.inspect.type_info, bodies))))
    return shapes


def _all_headers() -> list[type[msgspec.Struct]]:
    package = latermq.protocol.remoting
    names = [f"{package.__name__}.{info.name}" for info in pkgutil.iter_modules(package.__path__)]
    found = {name: value for module in names for name, value in vars(importlib.import_module(module)).items()}
    return [value for name, value in found.items() if name.endswith(("Header", "HeaderV2"))]


def _asked_by(handler: Callable[..., Any], seen: set[str]) -> tuple[list[type[msgspec.Struct]], list[Any]]:
    """What a handler, and the methods of its own class that it calls, decode headers and bodies as."""
    function = inspect.unwrap(getattr(handler, "__func__", handler))
    owner = getattr(handler, "__self__", None)
    names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    structs: list[type[msgspec.Struct]] = []
    bodies: list[Any] = []
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr == "header" and len(node.args) == 1:
            structs.append(eval(ast.unparse(node.args[0]), names))
        elif isinstance(called, ast.Name) and called.id == "decode_body" and len(node.args) == 2:
            bodies.append(eval(ast.unparse(node.args[1]), names))
        elif isinstance(called, ast.Attribute) and ast.unparse(called.value) == "self" and called.attr not in seen:
            seen.add(called.attr)
            inner = getattr(owner, called.attr, None)
            if inspect.ismethod(inner):
                more_structs, more_bodies = _asked_by(inner, seen)
                structs += more_structs
                bodies += more_bodies
        elif isinstance(called, ast.Name) and called.id.startswith(("decode_", "read_")) and called.id not in seen:
            seen.add(called.id)
            if inspect.isfunction(names.get(called.id)):
                bodies += _asked_by(names[called.id], seen)[1]
    return structs, bodies
