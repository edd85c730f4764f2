"""The engine that runs queries: what the driver asks of it, Spark as one, and its checkpoint."""
