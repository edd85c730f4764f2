"""Python errors: what an exception in a Python function of a query says about the record.

Spark passes on its text alone: the traceback, and the name of its class.
"""

import builtins
import re
import sys

from headwater import own_frames

__all__ = ["is_of_a_record", "raised"]

OF_A_RECORD = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What a function raises on a value that it cannot take.

All other exceptions stop the view. Those of services and drivers are mostly of classes of their own, and the
record is not their cause.
"""
OF_THE_MACHINE = (OSError,)
"""Some libraries mix the two: an error of a service that is a ValueError too."""
FRAME = re.compile(r'^  File "([^"]+)", line \d+', re.MULTILINE)
OPERATORS = "headwater/pipeline/"
"""Our own code in a traceback: then an operator has failed."""
BEGINS = "Traceback (most recent call last):"


def raised(text: str) -> str:
    """The exception that has left a Python worker: what it says, and the lines of a person's own code.

    The ones before it are exceptions that it has replaced.
    """
    message, frames = _said(text), own_frames.shown(own_frames.of_text(_last(text)))
    return f"{message} (in {frames})" if message and frames else message


def is_of_a_record(text: str) -> bool:
    """Whether a value can be the cause of an exception."""
    if any(OPERATORS in file for file in FRAME.findall(text)):
        return False
    kind = _kind(_said(text).partition(":")[0].strip())
    return kind is not None and issubclass(kind, OF_A_RECORD) and not issubclass(kind, OF_THE_MACHINE)


def _last(text: str) -> str:
    """The last stack trace of a text, and what follows it."""
    return text.rpartition(BEGINS)[2]


def _said(text: str) -> str:
    """The first line after the last stack trace."""
    below = _last(text).splitlines()[1:]
    return next((line for line in below if line and not line.startswith(" ")), "")


def _kind(name: str) -> type[BaseException] | None:
    """The class of this name, of a module that this process has imported; None if there is none."""
    module, _, short = name.rpartition(".")
    modules = [sys.modules.get(module)] if module else [builtins, sys.modules.get("__main__")]
    kinds = (getattr(place, short, None) for place in modules)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseException)), None)
