"""Alerts: rules over the state of all brokers, what fires, and its way to webhooks."""
