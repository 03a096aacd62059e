"""Topics and other tables of the broker, and RocketMQ's JSON files that store them."""
