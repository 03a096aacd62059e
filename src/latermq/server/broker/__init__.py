"""The broker process: its socket, its threads and its life cycle from start to stop."""
