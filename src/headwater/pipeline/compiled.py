"""Compiled: the few classes of our own that run inside Spark, made from their text by the compiler that Spark carries.

The jar is kept beside the connector jars, under a name that belongs to the text and to Spark's version: it is made once, without a JDK.
"""

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyspark

from headwater.errors import MachineError
from headwater.pipeline import jars

__all__ = ["ensure"]

SOURCES = Path(__file__).with_name("jvm")
LINES_SHOWN = 3


def ensure(progress: Callable[[str], None] | None = None) -> Path:
    """The jar, on this machine's disk. MachineError when it cannot be made."""
    texts = [path.read_text() for path in sorted(SOURCES.glob("*.java"))]
    digest = hashlib.sha256("".join([pyspark.__version__, *texts]).encode()).hexdigest()[:12]
    jar = jars.cache() / f"headwater-{digest}.jar"
    if not jar.is_file():
        if progress is not None:
            progress("compiling what runs inside Spark")
        jar.parent.mkdir(parents=True, exist_ok=True)
        _pack(_classes(texts), jar)
    return jar


def _classes(texts: list[str]) -> dict[str, bytes]:
    """The classes of some texts by their names, compiled in a JVM of its own."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 (to compile is rare, the import slow)

    found: dict[str, bytes] = {}
    with (
        tempfile.TemporaryDirectory(prefix="headwater-compiled-") as scratch,
        jars.gateway(Path(scratch) / "log") as jvm,
    ):
        try:
            for text in texts:
                compiler = jvm.org.codehaus.janino.SimpleCompiler()
                compiler.cook(text)
                found |= {name: bytes(code) for name, code in compiler.getBytecodes().items()}
        except Py4JError as error:
            said = str(error).strip().splitlines()[:LINES_SHOWN]
            raise MachineError("what runs inside Spark cannot be compiled", got=" / ".join(said)) from error
    return found


def _pack(classes: dict[str, bytes], jar: Path) -> None:
    """Writes a jar in one step, so that no reader meets half of it."""
    part = jar.with_suffix(f".{os.getpid()}")
    with zipfile.ZipFile(part, "w") as archive:
        for name, code in sorted(classes.items()):
            archive.writestr(f"{name.replace('.', '/')}.class", code)
    part.replace(jar)
