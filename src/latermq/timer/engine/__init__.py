"""Engines: on-disk storage of pending timers, ordered by the time at which they wake."""
