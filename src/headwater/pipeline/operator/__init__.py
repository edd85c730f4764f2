"""What an operator is, and the shell that runs one inside Spark's streaming plan."""
