"""RocketMQ's JSON format of topics, groups and offsets, in config files and in requests."""
