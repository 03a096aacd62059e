"""Brokers as the proxy sees them: its connections to them, and the topics and groups that they have."""
