"""The broker as a process: its socket, its threads and its life from start to stop."""
