"""Producers: batching, compression, and sends with retries on broker failure."""
