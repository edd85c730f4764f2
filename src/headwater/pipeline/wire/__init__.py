"""Between records of a topic and typed columns of Spark: names, keys, JSON, Debezium."""
