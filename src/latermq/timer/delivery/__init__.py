"""From the engine into the real topic: load ahead, build, and append at the due millisecond."""
