"""Fixtures for captures."""

from collections.abc import Iterator

import psycopg
import pytest

from captured import database
from databases import PostgresProcess


@pytest.fixture
def url(postgres: PostgresProcess) -> Iterator[str]:
    """A database of the test's own; its slots go with the test."""
    address = database(postgres.url)
    yield address
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        base = address.rsplit("/", 1)[1]
        slots = connection.execute(f"SELECT slot_name FROM pg_replication_slots WHERE database = '{base}'")
        for (slot,) in slots.fetchall():
            connection.execute(f"SELECT pg_drop_replication_slot('{slot}')")
