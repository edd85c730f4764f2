"""Fixtures for the files of views."""

from collections.abc import Callable

import pytest

from headwater.position import Position
from headwater.view.tables.delivery import Delivery
from support.servers import wait_until


class Seen:
    """The calls of ``on_commit``, in order."""

    def __init__(self) -> None:
        self.commits: list[tuple[str, list, Position]] = []

    def __call__(self, view, changes, position) -> None:
        self.commits.append((view, list(changes), position))

    def changes(self, view: str) -> list:
        return [change for name, changes, _ in list(self.commits) if name == view for change in changes]

    def wait(self, view: str, key: str, seconds: float = 20) -> None:
        wait_until(lambda: any(c.key == key for c in self.changes(view)), seconds, f"{view} has {key}")


@pytest.fixture
def deliver(bootstrap, tmp_path):
    """Starts a delivery into a folder of the test's own; all are stopped at the end."""
    running: list[Delivery] = []

    def start(*views: str, address: str = bootstrap, on_failure: Callable | None = None):
        seen = Seen()
        delivery = Delivery(address, views, tmp_path / "views", seen, on_failure=on_failure)
        delivery.start()
        running.append(delivery)
        return delivery, seen

    yield start
    for delivery in running:
        delivery.stop()
