"""HTTP/2 (RFC 9113) and gRPC's framing, server side, without I/O: bytes in, streams with news out, bytes to send."""
