"""Engines: where pending timers wait on disk, ordered by the time at which they wake."""
