"""The running driver as a service: its address and token, Spark Connect, and its control endpoint."""
