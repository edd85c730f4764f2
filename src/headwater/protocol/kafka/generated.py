"""The source of one generated function: its lines, and the objects to which they refer by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["FunctionSource"]


class FunctionSource:
    """Collects the lines of a function and compiles them."""

    def __init__(self, head: str) -> None:
        self._lines = [head]
        self._depth = 1
        self._names: dict[str, Any] = {}
        self._count = 0

    def add(self, *lines: str) -> None:
        self._lines += ["    " * self._depth + line for line in lines]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Lines added inside the ``with`` are indented below the head."""
        self.add(head)
        self._depth += 1
        yield
        self._depth -= 1

    def new_name(self, stem: str) -> str:
        """A new name for a variable."""
        self._count += 1
        return f"{stem}{self._count}"

    def bind(self, stem: str, value: object) -> str:
        """Makes an object available to the function; returns the name that refers to it."""
        name = self.new_name(stem)
        self._names[name] = value
        return name

    def compiled(self) -> Any:
        namespace: dict[str, Any] = {}
        # Generated from our own layouts.
        exec("\n".join(self._lines), self._names, namespace)  # noqa: S102
        return next(iter(namespace.values()))
