"""The Kafka listener itself: its process, its sockets, and frames of requests and answers."""
