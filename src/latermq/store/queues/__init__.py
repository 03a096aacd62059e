"""Consume queues: which exist, their files, and their recovery."""
