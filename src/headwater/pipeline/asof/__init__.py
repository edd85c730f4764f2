"""Events of a stream joined with the version of a table row that was valid at their time."""
