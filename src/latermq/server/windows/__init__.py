"""Windows in the broker: finds attempts, builds one if Spark is late, and loads them."""
