"""RocketMQ's JSON of topics, groups and offsets, which its config files and its requests share."""
