"""The web console: pages for people, made on the server from the same requests as the HTTP API."""
