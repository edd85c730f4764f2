"""Requests to durable, ordered records."""
