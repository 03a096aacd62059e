"""The name server: routes, registrations and the key-value table."""
