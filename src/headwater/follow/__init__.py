"""How far views and sinks are, read from the log alone."""
