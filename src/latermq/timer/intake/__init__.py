"""Intake from the timer topic into the engine: puts, renewals and cancels, and the set of settled timers."""
