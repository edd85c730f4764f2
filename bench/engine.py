"""Debezium's embedded engine as a process of its own: what so many row events cost it, as JSON without schemas and without publication."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".cache" / "debezium"
COMMON = {
    "name": "bench",
    "topic.prefix": "bench",
    "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
    "offset.flush.interval.ms": "1000",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "max.batch.size": "8192",
    "max.queue.size": "32768",
}
"""Queue and batches are four times Debezium's defaults; it is faster with them."""


class Cost(NamedTuple):
    """What rows took from the moment on when everything was warm."""

    rows: int
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.rows / self.cpu_s


class Engine:
    """One Java process, in which one engine runs after the other: it stays warm."""

    def __init__(self) -> None:
        classes = f"{FOLDER / 'classes'}:{FOLDER / 'lib'}/*"
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            ["java", "-Xmx1g", "-cp", classes, "Capture"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def run(self, settings: dict[str, str], warm: int, rows: int) -> Cost:
        """Ends with an error when the engine does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
            file.write("".join(f"{name}={value}\n" for name, value in (COMMON | settings).items()))
            file.flush()
            self._process.stdin.write(f"{file.name} {warm} {rows}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer.strip():
            self._said.seek(0)
            sys.exit(f"Debezium's engine failed: {self._said.read()[-3000:]}")
        found: dict[str, Any] = json.loads(answer)
        return Cost(**found)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._said.close()


def postgres(url: str, slot: str, tables: str, *, snapshot: bool) -> dict[str, str]:
    """Settings for a slot whose publication has the same name; with ``snapshot`` for the rows alone."""
    parts = urlsplit(url)
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": parts.hostname or "",
        "database.port": str(parts.port),
        "database.user": parts.username or "",
        "database.password": "unused",
        "database.dbname": parts.path.strip("/"),
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "publication.name": slot,
        "publication.autocreate.mode": "filtered" if snapshot else "disabled",
        "table.include.list": tables,
        "snapshot.mode": "initial_only" if snapshot else "no_data",
    }


def mariadb(url: str, database: str, tables: str, *, snapshot: bool) -> dict[str, str]:
    """Settings for a server whose binlog is there from its beginning; with ``snapshot`` for the rows alone."""
    parts = urlsplit(url)
    return {
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "database.hostname": parts.hostname or "",
        "database.port": str(parts.port),
        "database.user": parts.username or "",
        "database.password": parts.password or "",
        "database.server.id": "5400",
        "database.ssl.mode": "disable",
        "database.include.list": database,
        "table.include.list": tables,
        "include.schema.changes": "false",
        "schema.history.internal.skip.unparseable.ddl": "true",
        "schema.history.internal": "io.debezium.relational.history.MemorySchemaHistory",
        "snapshot.locking.mode": "none",
        "snapshot.mode": "initial_only" if snapshot else "never",
    }
