"""A view computed by Spark's plain operators, for a check that shares no code with our operators."""
