"""Delayed messages: admission, delay levels, the timer engine, the stage of messages due next, and delivery."""
