"""Rows and lines that show messages and timers."""
