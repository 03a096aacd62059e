"""Sends, pulls, long polling, retries and dead letters."""
