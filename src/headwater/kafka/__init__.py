"""The door to the log: sockets to requests, in the Kafka protocol."""
