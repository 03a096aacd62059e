"""TLS: certificates and their reloading, contexts of servers and clients, and sessions in memory."""
