"""Own frames: the lines of a person's own code in a traceback, without Python's, Spark's and Headwater's."""

import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Frame", "of_error", "of_text", "shown"]

FRAMES_MAX = 3
"""How many frames are shown: the innermost ones."""
PACKAGE = f"{Path(__file__).parent}/"
FOREIGN = ("/site-packages/", "/dist-packages/", "/pyspark.zip/", "/py4j-")
STANDARD = f"{sysconfig.get_path('stdlib')}/"
LINE = re.compile(
    r'  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)\n(?:    (?P<text>[^\n]*))?'
)


class Frame(NamedTuple):
    """One line of a traceback."""

    file: str
    line: int
    function: str
    text: str = ""

    @property
    def is_own(self) -> bool:
        outside = self.file.startswith((PACKAGE, STANDARD, "<")) and not self.file.startswith("<ipython")
        return not outside and not any(part in self.file for part in FOREIGN)

    def __str__(self) -> str:
        where = "" if self.function.startswith("<module") else f", in {self.function}"
        return f"{Path(self.file).name}, line {self.line}{where}{f': {self.text}' if self.text else ''}"


def of_error(error: BaseException) -> list[Frame]:
    """The own frames of an exception, the innermost last; the line of a file that cannot be compiled."""
    frames = [
        Frame(frame.filename, frame.lineno or 0, frame.name, frame.line or "")
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append(Frame(error.filename, error.lineno or 0, "<module>", (error.text or "").strip()))
    return [frame for frame in frames if frame.is_own]


def of_text(text: str) -> list[Frame]:
    """The own frames of a printed traceback, the innermost last."""
    return [frame for frame in _printed(text) if frame.is_own]


def _printed(text: str) -> Iterator[Frame]:
    for match in LINE.finditer(text):
        yield Frame(match["file"], int(match["line"]), match["function"], (match["text"] or "").strip())


def shown(frames: list[Frame]) -> str:
    """Frames as one line, the innermost first."""
    return ", called from ".join(map(str, reversed(frames[-FRAMES_MAX:])))
