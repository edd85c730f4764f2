"""Fixtures for queues."""

import pytest

from operate.queues.shares import Queue


@pytest.fixture
def queue(bootstrap) -> Queue:
    """One that nothing was written to yet."""
    return Queue(bootstrap)
