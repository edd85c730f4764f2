"""Derived streams to the outside, exactly once in effect."""

from headwater.sink.delivery import Delivery
from headwater.sink.table import SqliteTable

__all__ = ["Delivery", "SqliteTable"]
