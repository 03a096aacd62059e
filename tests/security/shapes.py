"""What every served request looks like: the fields of its header and the type of its body, read off its row."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from latermq.server.remoting.endpoints import Endpoint
from tests.support.served_requests import broker_endpoints, name_server_endpoints


@dataclass(frozen=True)
class Shape:
    """A request: its code, the fields of its header with their types, and what its body is decoded as, if it is."""

    code: int
    fields: tuple[msgspec.inspect.Field, ...]
    bodies: tuple[msgspec.inspect.Type, ...]


def broker_shapes() -> list[Shape]:
    """Of all requests that a broker serves."""
    return _shapes(endpoint for endpoints in broker_endpoints().values() for endpoint in endpoints)


def name_server_shapes() -> list[Shape]:
    """Of all requests that a name server serves."""
    return _shapes(name_server_endpoints())


def _shapes(endpoints: Iterable[Endpoint]) -> list[Shape]:
    return [shape_of(endpoint) for endpoint in sorted(endpoints, key=lambda endpoint: endpoint.code)]


def shape_of(endpoint: Endpoint) -> Shape:
    """Of the request of one row."""
    fields: tuple[msgspec.inspect.Field, ...] = ()
    if endpoint.header is not None:
        header = msgspec.inspect.type_info(endpoint.header)
        assert isinstance(header, msgspec.inspect.StructType)
        fields = header.fields
    bodies = (msgspec.inspect.type_info(endpoint.body),) if endpoint.body is not None else ()
    return Shape(int(endpoint.code), fields, bodies)
