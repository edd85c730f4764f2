"""The command line inside the process of a test: no second interpreter for each line."""

import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from headwater.cli.main import main

__all__ = ["Outcome", "complaint", "headwater"]

CPU_SECONDS_MAX = 2.0
"""What a command may cost that needs no Spark."""


class Outcome(NamedTuple):
    """What a command has printed, its exit code, and what it has cost."""

    code: int
    stdout: str
    stderr: str
    cpu_seconds: float


@contextmanager
def _without_settings(folder: Path, changes: dict[str, str]) -> Iterator[None]:
    """No setting of the machine: an empty folder, and only these variables."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("HEADWATER_")]:
            patch.delenv(name)
        for name, value in changes.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        yield


def headwater(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str, **changes: str) -> Outcome:
    """Runs ``headwater`` with these arguments in a folder."""
    paths, modules = list(sys.path), set(sys.modules)
    capsys.readouterr()
    begun = time.thread_time()  # servers of other tests have threads in this process
    with _without_settings(folder, changes), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["headwater", *arguments])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        with pytest.raises(SystemExit) as ended:
            main()
    cpu_seconds = time.thread_time() - begun
    sys.path[:] = paths
    for name in set(sys.modules) - modules:
        if name.startswith("headwater_app_"):
            del sys.modules[name]
    printed = capsys.readouterr()
    return Outcome(int(ended.value.code or 0), printed.out, printed.err, cpu_seconds)


def complaint(outcome: Outcome, code: int = 2) -> str:
    """The one line on standard error, within the time that a command may take; no traceback."""
    assert outcome.code == code, outcome
    lines = outcome.stderr.splitlines()
    assert len(lines) == 1, outcome.stderr
    assert lines[0].startswith("headwater: ")
    assert outcome.cpu_seconds < CPU_SECONDS_MAX
    return lines[0].removeprefix("headwater: ")
