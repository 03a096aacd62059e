"""Commands for messages, timers, topics and groups."""
