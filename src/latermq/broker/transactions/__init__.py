"""Transactions: stores half messages, ends them as their producers decide, and asks producers that did not."""
