"""The broker's data model: topics, groups, offsets, timers, statistics. It is independent of RocketMQ's formats."""
