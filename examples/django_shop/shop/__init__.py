"""A shop that closes orders that are not paid in time."""
