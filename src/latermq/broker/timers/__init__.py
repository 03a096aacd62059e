"""Pending timers as clients, operators and the pipeline see them."""
