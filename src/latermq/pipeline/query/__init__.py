"""SQL over pending timers and the timeline, read only."""
