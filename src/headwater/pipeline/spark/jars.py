"""The connector jars that Spark needs for a Kafka log: pinned, verified, fetched once.

A jar comes from the first place that has it with the right checksum: our cache, the local Maven repository,
then a download by the Ivy that every PySpark carries, then by Maven where it is installed. Downloads are
never transitive (the newest connector and its token provider differ in version, which Ivy refuses) and follow
the user's own configuration of Spark and Maven: this module has no addresses. Once fetched, no network is
needed.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from py4j.protocol import Py4JError

from headwater.errors import MachineError

__all__ = ["COORDINATES", "Jar", "cache", "ensure", "gateway"]

FETCH_SECONDS_MAX = 300
LOG_LINES_SHOWN = 3


class Jar(msgspec.Struct, frozen=True):
    """One artifact: Maven coordinates and the SHA-256 of its jar."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


COORDINATES = (
    Jar(
        "org.apache.spark",
        "spark-sql-kafka-0-10_2.13",
        "4.2.0",
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    ),
    Jar(
        "org.apache.spark",
        "spark-token-provider-kafka-0-10_2.13",
        "4.0.0",
        "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-clients",
        "3.9.2",
        "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    ),
    Jar(
        "org.apache.commons",
        "commons-pool2",
        "2.13.1",
        "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    ),
)


def cache() -> Path:
    """The folder of the verified jars: ``$XDG_CACHE_HOME/headwater/jars``, or the same under ``~/.cache``."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "headwater" / "jars"


def ensure(folder: Path | None = None, progress: Callable[[str], None] | None = None) -> list[Path]:
    """All jars, verified, on this machine's disk; fetches missing ones, otherwise uses no network.

    Raises MachineError, naming the artifact and every place that was tried.
    """
    folder = folder or cache()
    missing = [jar for jar in COORDINATES if not _verified(folder / jar.file, jar)]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        _fetch(missing, folder, progress or (lambda _: None))
    return [folder / jar.file for jar in COORDINATES]


def _fetch(missing: list[Jar], folder: Path, progress: Callable[[str], None]) -> None:
    tried: list[str] = []
    for name, source in (("local Maven repository", _local), ("Spark's Ivy", _ivy), ("Maven", _maven)):
        with tempfile.TemporaryDirectory(prefix="headwater-jars-") as scratch:
            message = source(missing, Path(scratch), progress)
            for jar in missing:
                _keep(Path(scratch) / jar.file, jar, folder)
        missing = [jar for jar in missing if not _verified(folder / jar.file, jar)]
        if not missing:
            return
        tried.append(f"{name}: {message}")
    raise MachineError(
        f"jar {missing[0].coordinates} is missing and could not be fetched",
        got=" | ".join(tried),
        hint=f"check the network and Spark's or Maven's repository settings, "
        f"or put {missing[0].file} into {folder}",
    )


def _keep(download: Path, jar: Jar, folder: Path) -> None:
    """Moves a verified download into the cache in one step, so that no reader finds half a jar."""
    if _verified(download, jar):
        part = folder / f".{jar.file}.{os.getpid()}"
        shutil.copyfile(download, part)
        part.replace(folder / jar.file)


def _verified(path: Path, jar: Jar) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == jar.sha256


def _local(missing: list[Jar], scratch: Path, _progress: Callable[[str], None]) -> str:
    repository = Path.home() / ".m2" / "repository"
    for jar in missing:
        path = repository.joinpath(*jar.group.split("."), jar.artifact, jar.version, jar.file)
        if path.is_file():
            shutil.copyfile(path, scratch / jar.file)
    return f"not in {repository}"


def _ivy(missing: list[Jar], scratch: Path, progress: Callable[[str], None]) -> str:
    """Asks the Ivy inside Spark, in a separate JVM, for one artifact at a time."""
    log = scratch / "ivy.log"
    try:
        with gateway(log) as jvm:
            # A half-filled local Maven repository breaks Ivy: it finds the pom there and then misses the jar.
            jvm.java.lang.System.setProperty("user.home", str(scratch))
            for jar in missing:
                progress(f"fetching {jar.coordinates}")
                uri = jvm.java.net.URI(f"ivy://{jar.coordinates}?transitive=false")
                with contextlib.suppress(Py4JError):
                    paths = jvm.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(uri)
                    shutil.copyfile(paths.head(), scratch / jar.file)
    except MachineError as error:
        return str(error)
    return _looked(log)


@contextlib.contextmanager
def gateway(log: Path) -> Iterator[Any]:
    """A JVM with Spark's classes, without Spark itself.

    It writes to a file. Raises MachineError if it fails.
    """
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 (it is rarely needed, the import slow)
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    try:
        with log.open("wb") as out:
            launched = launch_gateway(popen_kwargs={"stdout": out, "stderr": out})
    except PySparkRuntimeError as error:
        raise MachineError(f"no JVM ({_last_lines(log)})") from error
    try:
        yield launched.jvm
    finally:
        launched.shutdown()
        launched.proc.stdin.close()
        launched.proc.wait()


def _maven(missing: list[Jar], scratch: Path, progress: Callable[[str], None]) -> str:
    maven = shutil.which("mvn")
    if maven is None:
        return "not installed"
    log = scratch / "maven.log"
    for jar in missing:
        progress(f"fetching {jar.coordinates} with Maven")
        command = [
            maven,
            "-q",
            "-B",
            "dependency:copy",
            f"-Dartifact={jar.coordinates}",
            f"-DoutputDirectory={scratch}",
        ]
        with log.open("ab") as out, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command, cwd=scratch, stdout=out, stderr=out, timeout=FETCH_SECONDS_MAX, check=False
            )
    return _last_lines(log)


def _looked(log: Path) -> str:
    """Where Ivy looked: the addresses in its report, since they come from the user's configuration."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    places = dict.fromkeys(
        line for line in lines if line.startswith(("http://", "https://", "Host ", "Server access"))
    )
    return "looked at " + ", ".join(list(places)[:LOG_LINES_SHOWN]) if places else _last_lines(log)


def _last_lines(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-LOG_LINES_SHOWN:]) or "no answer"
