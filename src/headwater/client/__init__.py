"""Every way in which this package itself talks to a Kafka log."""
