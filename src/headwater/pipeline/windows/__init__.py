"""Operators over the event time of one stream: windows of all kinds, duplicates, wrong clocks."""
