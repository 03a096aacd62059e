"""Counters, rates, limits and the metric families made of them."""
