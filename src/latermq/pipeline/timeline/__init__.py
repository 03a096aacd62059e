"""The timeline: one Delta table of far timers, crash-safe and compacted."""
