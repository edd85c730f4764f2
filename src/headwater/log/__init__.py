"""The heart: requests to durable, ordered records."""
