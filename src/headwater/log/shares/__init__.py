"""Share groups on the log: their durable state, and records of partitions for their members."""
