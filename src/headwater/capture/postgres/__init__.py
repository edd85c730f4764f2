"""PostgreSQL by logical replication."""
