"""Transactions: half messages that wait for the decision of their producer."""
