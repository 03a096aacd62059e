"""What would happen if many timers were added: a queueing model of deliveries and of consumers."""
