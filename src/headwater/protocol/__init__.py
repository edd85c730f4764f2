"""Bytes to messages and back, one room for each protocol; no I/O."""
