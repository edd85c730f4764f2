"""Java classes: our few classes that run inside Spark, compiled by the compiler that Spark includes.

The jar is in the cache of the connector jars, under a name made from the sources and Spark's version: it is
built once, without a JDK.
"""

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyspark

from headwater.errors import MachineError
from headwater.pipeline.spark import jars

__all__ = ["ensure"]

SOURCES = Path(__file__).with_name("jvm")
LINES_SHOWN = 3


def ensure(progress: Callable[[str], None] | None = None) -> Path:
    """The jar, on this machine's disk. Raises MachineError if it cannot be built."""
    texts = [path.read_text() for path in sorted(SOURCES.glob("*.java"))]
    digest = hashlib.sha256("".join([pyspark.__version__, *texts]).encode()).hexdigest()[:12]
    jar = jars.cache() / f"headwater-{digest}.jar"
    if not jar.is_file():
        if progress is not None:
            progress("compiling the classes that run inside Spark")
        jar.parent.mkdir(parents=True, exist_ok=True)
        _pack(_classes(texts), jar)
    return jar


def _classes(texts: list[str]) -> dict[str, bytes]:
    """The classes of some sources by name, compiled in a separate JVM."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 (compiling is rare, the import slow)

    classes: dict[str, bytes] = {}
    with (
        tempfile.TemporaryDirectory(prefix="headwater-compiled-") as scratch,
        jars.gateway(Path(scratch) / "log") as jvm,
    ):
        try:
            for text in texts:
                compiler = jvm.org.codehaus.janino.SimpleCompiler()
                compiler.cook(text)
                classes |= {name: bytes(code) for name, code in compiler.getBytecodes().items()}
        except Py4JError as error:
            lines = str(error).strip().splitlines()[:LINES_SHOWN]
            raise MachineError("the classes for Spark cannot be compiled", got=" / ".join(lines)) from error
    return classes


def _pack(classes: dict[str, bytes], jar: Path) -> None:
    """Writes a jar in one step, so that no reader finds half of it."""
    part = jar.with_suffix(f".{os.getpid()}")
    with zipfile.ZipFile(part, "w") as archive:
        for name, code in sorted(classes.items()):
            archive.writestr(f"{name.replace('.', '/')}.class", code)
    part.replace(jar)
