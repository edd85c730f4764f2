"""The Kafka listener: sockets to requests of the log, and answers back."""
