"""gRPC on sockets: a listener for TLS and plaintext on one port, HTTP/2 connections, and calls for their handlers."""
