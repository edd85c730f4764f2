"""Records by whole columns into a log, each transaction once."""
