"""The session layer shared by producers and consumers: connections, routes and retries."""
