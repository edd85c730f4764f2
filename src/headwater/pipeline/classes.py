"""Spark's classes as a JVM has them in memory, kept in a file that every later JVM maps: Spark starts in half the time.

The file belongs to one Java, one Spark, the place where that is installed and the very files that were put there; a JVM that finds others does without. `headwater.operate.classes` makes it.
"""

import hashlib
from pathlib import Path

import pyspark

from headwater.java import Java
from headwater.pipeline import jars

__all__ = ["find", "options", "others", "place"]


def place(java: Java, size: int) -> Path:
    """Where a file of so many bytes is kept, beside the jars. A JVM reads beyond the end of one that was cut off, and is gone: hence the size in its name."""
    return jars.cache().parent / f"spark-{_installed(java)}-{_files()}-{size}.jsa"


def find(java: Java) -> Path | None:
    """The file, if it is there and whole."""
    found = jars.cache().parent.glob(f"spark-{_installed(java)}-{_files()}-*.jsa")
    return next((path for path in found if path == place(java, path.stat().st_size)), None)


def others(java: Java, kept: Path) -> list[Path]:
    """The files of what was installed here before."""
    return [path for path in jars.cache().parent.glob(f"spark-{_installed(java)}-*.jsa") if path != kept]


def _installed(java: Java) -> str:
    return _digest(f"{java.about} {pyspark.__version__} {pyspark.__file__}", 12)


def _files() -> str:
    """A JVM compares the times of the jars with those that it has written down."""
    listed = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    return _digest(" ".join(f"{path.name} {path.stat().st_mtime_ns}" for path in listed), 8)


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def options(java: Java) -> list[str]:
    """For a JVM: use them if they are kept, and do not speak of it."""
    path = find(java)
    return [] if path is None else [f"-XX:SharedArchiveFile={path}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
