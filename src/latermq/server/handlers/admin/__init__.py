"""Handlers of administration requests."""
