"""Consumers: assignment, pulling, handling and offsets."""
