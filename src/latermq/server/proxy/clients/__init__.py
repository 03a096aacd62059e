"""The clients of the proxy: their settings, telemetry streams, and what brokers learn about them."""
