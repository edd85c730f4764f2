"""Databases into change topics: a snapshot, then every commit in order, without a gap."""

from headwater.capture.mariadb.declaration import MariaDB
from headwater.capture.postgres.declaration import Postgres
from headwater.capture.sqlite.declaration import Polling, Sqlite

__all__ = ["MariaDB", "Polling", "Postgres", "Sqlite"]
