"""The messages of RocketMQ's 5.x protocol: generated code, and conversions from and to it."""
