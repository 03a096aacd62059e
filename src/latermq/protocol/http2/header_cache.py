"""Decoded header fields and requests by their bytes, for all connections of a server."""

from latermq.protocol.http2.hpack.decoder import FieldCache
from latermq.protocol.http2.requests import Request


class HeaderCache:
    """Bounded caches, for connections whose peers use no dynamic table. A client often repeats whole blocks."""

    __slots__ = ("fields", "max_request_bytes", "max_requests", "requests")

    def __init__(self, max_requests: int = 1024, max_request_bytes: int = 1024) -> None:
        self.fields = FieldCache()
        self.requests: dict[bytes, Request] = {}
        self.max_requests = max_requests
        self.max_request_bytes = max_request_bytes

    def put(self, block: bytes, request: Request) -> None:
        if len(block) <= self.max_request_bytes:
            if len(self.requests) >= self.max_requests:
                self.requests.clear()
            self.requests[block] = request

    def statistics(self) -> dict[str, int]:
        return {
            "cached_requests": len(self.requests),
            "max_cached_requests": self.max_requests,
            **self.fields.statistics(),
        }
