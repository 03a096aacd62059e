"""Delivery from the engine to the real topics: load ahead, build, and append at the due millisecond."""
