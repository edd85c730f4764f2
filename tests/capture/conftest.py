"""Fixtures for captures."""

from collections.abc import Iterator

import pytest

from support.captured import database, drop_slots
from support.databases import PostgresProcess


@pytest.fixture
def url(postgres: PostgresProcess) -> Iterator[str]:
    """A database of the test's own; its slots go with the test."""
    address = database(postgres.url)
    yield address
    drop_slots(address)
