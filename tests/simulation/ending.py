"""Ending: what a life ended with, in words; a mistake of the simulator itself is not taken for a defect of the product."""

import traceback
from pathlib import Path

from simulation.model import Wrong

__all__ = ["HARNESS", "ending", "is_defect"]

HARNESS = "the simulator itself failed"
TESTS = Path(__file__).parent.parent
PRODUCT = TESTS.parent / "src"
MISTAKES = (AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
"""What wrong code raises. Faults that the simulator plays (OSError, UnavailableError, RequestError) are meant: to let one escape is a defect."""


def ending(error: BaseException) -> str:
    """The error in one line. A mistake whose innermost frame of ours is in the tests begins with HARNESS."""
    cause = error.__cause__ if isinstance(error, Wrong) and error.__cause__ is not None else error
    text = f"{type(error).__name__}: {error}"
    if isinstance(cause, Wrong) or not isinstance(cause, MISTAKES):
        return text
    ours = [
        frame
        for frame in traceback.extract_tb(cause.__traceback__)
        if Path(frame.filename).is_relative_to(TESTS) or Path(frame.filename).is_relative_to(PRODUCT)
    ]
    if not ours or Path(ours[-1].filename).is_relative_to(PRODUCT):
        return text
    return f"{HARNESS}, at {Path(ours[-1].filename).name}:{ours[-1].lineno}: {text}"


def is_defect(ended: str | None) -> bool:
    """Whether a life failed, and not by a mistake of the simulator."""
    return ended is not None and not ended.startswith(HARNESS)
