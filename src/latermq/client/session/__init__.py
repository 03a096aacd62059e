"""What producers and consumers share: connections, routes and retries."""
