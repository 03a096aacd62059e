"""Windows on the broker's side: find attempts, build one where Spark is late, and load them."""
