"""Gate: what touches databases, stores and topics waits here until the plans of all views are checked.

    run/plans.checked      the pipeline has planned every view since its start
    run/PART-NAME.begun    a capture or sink that has been let through, and a hash of its declaration

So an application that only planning can refuse leaves no slot, no trigger, no table and no topic. A part
that has run here before touches nothing new: it is let through at once, also while Spark cannot start.
"""

import contextlib
import hashlib
import threading
from pathlib import Path
from typing import Any

__all__ = ["Gate"]

LOOK_S = 0.05


class Gate:
    """The gate of a data folder: the pipeline opens it, captures and sinks wait for that."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "run"
        self._checked = self._folder / "plans.checked"

    def close(self) -> None:
        """Before a pipeline is started, which may have another version of the application."""
        self._checked.unlink(missing_ok=True)

    def open(self) -> None:
        """Every view was planned, or there is none."""
        self._checked.touch()

    def wait(self, part: str, name: str, declaration: Any, stop: threading.Event) -> bool:
        """Returns once a part may begin; False if ``stop`` is set before."""
        while not self.lets(part, name, declaration):
            if stop.wait(LOOK_S):
                return False
        return True

    def lets(self, part: str, name: str, declaration: Any) -> bool:
        """Whether a part may begin. What was let through once will be again, as long as it is declared so."""
        begun, digest = self._folder / f"{part}-{name}.begun", _digest(declaration)
        with contextlib.suppress(OSError):
            if begun.read_text() == digest:
                return True
        if not self._checked.exists():
            return False
        with contextlib.suppress(OSError):  # a full disk: it waits again at the next start
            begun.write_text(digest)
        return True


def _digest(declaration: Any) -> str:
    return hashlib.sha256(_text(declaration).encode()).hexdigest()


def _text(declared: Any) -> str:
    """What a database or store is declared with: values, functions by their names, and objects of such."""
    if hasattr(declared, "__qualname__"):
        return str(declared.__qualname__)
    names = getattr(declared, "__struct_fields__", None) or sorted(getattr(declared, "__dict__", ()))
    if not names:
        return repr(declared)
    fields = (f"{name}={_text(getattr(declared, name))}" for name in names)
    return f"{type(declared).__qualname__}({', '.join(fields)})"
