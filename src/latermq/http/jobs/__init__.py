"""Jobs: many timers cancelled or moved, or many dead letters sent again, over restarts of the console."""
