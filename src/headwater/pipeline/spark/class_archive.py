"""Class archive: a file with Spark's classes as a JVM has them in memory.

Later JVMs map it and start in half the time.
It belongs to one Java, one Spark, its place and its files; a JVM that finds others ignores it.
`headwater.operate.machine.keep_classes` makes it.
"""

import hashlib
from pathlib import Path

import pyspark

from headwater.pipeline.spark import jars
from headwater.pipeline.spark.java import Java

__all__ = ["find", "options", "others", "place"]


def place(java: Java, size: int) -> Path:
    """The path of an archive of this size, next to the jars.

    A JVM that maps a truncated archive crashes: hence the size in the name.
    """
    return jars.cache().parent / f"spark-{_installed(java)}-{_files()}-{size}.jsa"


def find(java: Java) -> Path | None:
    """The archive, if there is a whole one."""
    archives = jars.cache().parent.glob(f"spark-{_installed(java)}-{_files()}-*.jsa")
    return next((path for path in archives if path == place(java, path.stat().st_size)), None)


def others(java: Java, kept: Path) -> list[Path]:
    """The archives of other installations with this Java and Spark."""
    return [path for path in jars.cache().parent.glob(f"spark-{_installed(java)}-*.jsa") if path != kept]


def _installed(java: Java) -> str:
    return _digest(f"{java.about} {pyspark.__version__} {pyspark.__file__}", 12)


def _files() -> str:
    """A digest of the jars' times, which a JVM compares with those in the archive."""
    listed = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    return _digest(" ".join(f"{path.name} {path.stat().st_mtime_ns}" for path in listed), 8)


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def options(java: Java) -> list[str]:
    """The JVM options to use the archive, if there is one, without messages about it."""
    path = find(java)
    return [] if path is None else [f"-XX:SharedArchiveFile={path}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
