"""The broker's data model: topics, groups, offsets, subscriptions. It is independent of RocketMQ's formats."""
