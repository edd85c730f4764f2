"""MariaDB and MySQL by their row binlog."""
