"""Formats: the version of everything that Headwater stores outside of the log, and how it is read.

    without a format  it has format 1
    an older format   the reader supports it, or the writer migrates it once, in one step or resumably
    a newer format    refused with a hint: never misread, never overwritten

To change what is stored: increase its number here, let its reader support the older ones, add a data folder
of the code before (``tests/formats/make_application.py``) and a line to ``docs/formats.md``. A test compares
the two lists.
"""

from typing import Final, TypeVar

import msgspec

from headwater.decoders import from_json
from headwater.errors import UsageError

__all__ = ["FORMATS", "Format"]

T = TypeVar("T")


class _Named(msgspec.Struct):
    format: int = 1


class Format(msgspec.Struct, frozen=True):
    """One kind of stored data, and the newest format of it that this code reads and writes."""

    name: str
    """As in ``docs/formats.md``."""
    newest: int
    remedy: str
    """An alternative to an upgrade, in words that can follow an "or"."""

    def check(self, found: int, where: str, remedy: str = "") -> None:
        """Raises UsageError if data has a newer format than this code knows. ``where`` names the data."""
        if found > self.newest:
            raise UsageError(
                f"{where} was written by a newer Headwater",
                got=f"format {found}",
                expected=f"at most {self.newest}",
                hint=f"install that version again, or {remedy or self.remedy}",
            )

    def decode(self, data: bytes, kind: type[T], where: str, remedy: str = "") -> T:
        """JSON as a struct with a field ``format``. A newer format is refused, whatever else has changed."""
        try:
            value = from_json(data, kind)
        except msgspec.ValidationError:
            self.check(_format_of(data), where, remedy)
            raise
        self.check(getattr(value, "format"), where, remedy)  # noqa: B009  a field of every such struct
        return value

    def verify(self, data: bytes, where: str, remedy: str = "") -> bytes:
        """The data itself, which is JSON with or without a format, unless its format is newer."""
        self.check(_format_of(data), where, remedy)
        return data


def _format_of(data: bytes) -> int:
    try:
        return from_json(data, _Named).format
    except msgspec.MsgspecError:
        return 1


RESULT: Final = Format("result", 2, "rebuild the view from the log: headwater view reset NAME --accept-loss")
STATE_FILE: Final = Format("state file", 1, "rebuild the view from the log: headwater view reset NAME")
STATE_COPY: Final = Format("state copy", 1, "remove the folder: it is restored from the state files")
BOUNDS: Final = Format("real-time bounds", 1, "rebuild the view from the log: headwater view reset NAME")
SHARE_STATE: Final = Format("share state", 2, "restore a copy of the data folder from before the upgrade")
VIEW_BACKUP: Final = Format("view backup", 1, "rebuild the view from the log: headwater view reset NAME")
VIEW_TABLE: Final = Format("view table", 1, "remove the file: it is filled again from the log")
CAPTURE: Final = Format("capture state", 1, "capture the database under another name")
CAPTURE_SCHEMA: Final = Format("capture schema", 1, "capture the database under another name")
CONTROL: Final = Format("capture command", 1, "send the command with this version")
NOTICE: Final = Format("capture notice", 1, "look at the topic with any Kafka client")
KEPT_ROWS: Final = Format("kept rows", 1, "remove the file: it is restored from the log")
CHANGE_TABLE: Final = Format(
    "change table", 1, "begin again: headwater capture remove NAME APP, then headwater capture add NAME APP"
)
SQLITE_SINK: Final = Format("SQLite sink", 1, "give the sink another file")
POSTGRES_SINK: Final = Format("PostgreSQL sink", 1, "give the sink another schema")
REDIS_SINK: Final = Format("Redis sink", 1, "give the sink another name and prefix")
OPENSEARCH_SINK: Final = Format("OpenSearch sink", 1, "give the sink another name and index")
TANTIVY_SINK: Final = Format("Tantivy sink", 1, "give the sink another path")
DELTA_SINK: Final = Format("Delta sink", 1, "give the sink another path")
PARQUET_SINK: Final = Format("Parquet sink", 1, "give the sink another path")
KAFKA_SINK: Final = Format("Kafka sink", 1, "give the sink another name and topic")
JOURNAL: Final = Format("effect journal", 1, "give the sink another name")
PARKED: Final = Format("parked key", 1, "give the worker another group")
SPILL: Final = Format("spill", 2, "give the writer another spill folder")

FORMATS: Final = {
    kind.name: kind
    for kind in (
        SHARE_STATE,
        RESULT,
        STATE_FILE,
        STATE_COPY,
        BOUNDS,
        VIEW_BACKUP,
        VIEW_TABLE,
        CAPTURE,
        CAPTURE_SCHEMA,
        CONTROL,
        NOTICE,
        KEPT_ROWS,
        CHANGE_TABLE,
        SQLITE_SINK,
        POSTGRES_SINK,
        REDIS_SINK,
        OPENSEARCH_SINK,
        TANTIVY_SINK,
        DELTA_SINK,
        PARQUET_SINK,
        KAFKA_SINK,
        JOURNAL,
        PARKED,
        SPILL,
    )
}
"""All formats by name, in the order of ``docs/formats.md``."""
