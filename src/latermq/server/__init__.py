"""Sockets and processes: the name server, the broker server and the supervisor that runs them."""
