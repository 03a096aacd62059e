"""What the broker keeps and tells: topics, groups, timers, statistics. Nothing here knows how RocketMQ writes them."""
