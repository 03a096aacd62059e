"""Far timers on the broker: who owns each timer, and the windows that Spark hands back."""
