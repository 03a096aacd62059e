"""Server processes and their sockets: the name server, the broker and the supervisor that runs them."""
