"""Operators over rows that are inserted and retracted: changelog, join, group, valid."""
