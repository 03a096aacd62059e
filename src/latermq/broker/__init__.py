"""The broker without its sockets: sending, pulling, offsets, topics and groups over one store."""
