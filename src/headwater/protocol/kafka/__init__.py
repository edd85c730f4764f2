"""Kafka's messages as data, and the compiled functions that read and write them."""
