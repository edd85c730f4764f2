"""The text of one generated function: its lines, and the objects that they speak of by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Source"]


class Source:
    """Collects the lines of a function, and compiles them."""

    def __init__(self, head: str) -> None:
        self._lines = [head]
        self._depth = 1
        self._names: dict[str, Any] = {}
        self._count = 0

    def add(self, *lines: str) -> None:
        self._lines += ["    " * self._depth + line for line in lines]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """What is added meanwhile stands indented below the head."""
        self.add(head)
        self._depth += 1
        yield
        self._depth -= 1

    def fresh(self, stem: str) -> str:
        """A name of its own for a variable."""
        self._count += 1
        return f"{stem}{self._count}"

    def bind(self, stem: str, value: object) -> str:
        """A name by which the function finds the object."""
        name = self.fresh(stem)
        self._names[name] = value
        return name

    def compiled(self) -> Any:
        namespace: dict[str, Any] = {}
        exec("\n".join(self._lines), self._names, namespace)  # noqa: S102  generated from our own layouts
        return next(iter(namespace.values()))
