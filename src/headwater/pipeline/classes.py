"""Spark's classes as a JVM has them in memory, kept in a file that every later JVM maps: Spark starts in half the time.

The file belongs to one Java, one Spark and the place where that is installed; a JVM that is another one does without. `headwater.operate.classes` makes it.
"""

import hashlib
from pathlib import Path

import pyspark

from headwater.java import Java
from headwater.pipeline import jars

__all__ = ["find", "options", "place"]


def place(java: Java, size: int) -> Path:
    """Where a file of so many bytes is kept, beside the jars. A JVM reads beyond the end of one that was cut off, and is gone: hence the size in its name."""
    about = f"{java.about} {pyspark.__version__} {pyspark.__file__}"
    return jars.cache().parent / f"spark-{hashlib.sha256(about.encode()).hexdigest()[:12]}-{size}.jsa"


def find(java: Java) -> Path | None:
    """The file, if it is there and whole."""
    pattern = place(java, 0).name.replace("-0.jsa", "-*.jsa")
    found = jars.cache().parent.glob(pattern)
    return next((path for path in found if path == place(java, path.stat().st_size)), None)


def options(java: Java) -> list[str]:
    """For a JVM: use them if they are kept, and do not speak of it."""
    path = find(java)
    return [] if path is None else [f"-XX:SharedArchiveFile={path}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
