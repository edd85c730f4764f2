"""The Java that Spark uses: its path, its version, and what to do without it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import msgspec

from headwater.errors import MachineError

__all__ = ["Java", "find", "require"]

VERSION_MIN = 17
ANSWER_S = 20
INSTALL = (
    f"install Java {VERSION_MIN} or newer (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
)


class Java(msgspec.Struct, frozen=True):
    """A Java program, its major version and the text of its ``-version``."""

    path: str
    version: int
    about: str


def find() -> Java | None:
    """The Java that Spark's scripts choose: that of JAVA_HOME, else the first on the path.

    None if it does not run.
    """
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if path is None:
        return None
    try:
        answer = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    about = answer.stderr + answer.stdout
    version = re.search(r'version "(?:1\.)?(\d+)', about)
    return Java(path, int(version[1]), about) if version else None


def require() -> Java:
    """The Java, or a MachineError that says what to install."""
    java = find()
    if java is None:
        raise MachineError("no Java was found, and Spark needs one", hint=INSTALL)
    if java.version < VERSION_MIN:
        raise MachineError(
            f"Java at {java.path} is too old",
            got=str(java.version),
            expected=f"{VERSION_MIN} or newer",
            hint=INSTALL,
        )
    return java
