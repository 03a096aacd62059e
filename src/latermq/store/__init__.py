"""The durable log and everything derived from it: queues, key index, checkpoint, recovery, retention."""
