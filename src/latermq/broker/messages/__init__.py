"""Pulls, long polling, retries and dead letters."""
