"""The timeline: one Delta table of far timers, safe from crashes and compacted."""
