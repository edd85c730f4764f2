"""Bulk: records by whole columns into a log, each transaction once."""
