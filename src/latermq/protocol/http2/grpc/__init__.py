"""gRPC over HTTP/2, without I/O: call headers, messages, and statuses in trailers."""
