"""Databases into change topics: a snapshot, then every commit in order, without a gap."""

from headwater.capture.databases import MariaDB, Polling, Sqlite
from headwater.capture.declared import Postgres

__all__ = ["MariaDB", "Polling", "Postgres", "Sqlite"]
