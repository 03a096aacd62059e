"""Bulk jobs: schedule, cancel and move many timers."""
