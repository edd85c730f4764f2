"""Streams and tables of the log become views, on Spark."""
