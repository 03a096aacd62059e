"""Producers: batching, compression and sends that survive a failing broker."""
