"""Kafka's protocol: the requests of clients, and what the log answers."""
