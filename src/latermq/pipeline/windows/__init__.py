"""Windows: built from the timeline by Spark or without it, as attempts that brokers load."""
