"""Fixtures for sinks."""

import pytest

from sink.killed import start_nursery
from support.databases import RedisProcess
from support.viewlog import ViewLog


@pytest.fixture
def log(bootstrap) -> ViewLog:
    return ViewLog(bootstrap)


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    """Redis for the tests of a file."""
    process = RedisProcess(tmp_path_factory.mktemp("redis") / "data")
    process.start()
    yield process
    process.end()


@pytest.fixture(scope="session")
def nursery():
    """Where writers are born that a test kills."""
    process = start_nursery()
    yield process
    process.stdin.close()
    assert process.wait(120) == 0
    process.stdout.close()
