"""Formats: the version of all that Headwater stores outside of the log's own files, and the one rule by which it is read.

    names no format   it has format 1
    an older format   the reader knows it, or the writer migrates it once, in one step or resumably
    a newer format    refused with what helps: never misread, never overwritten

To change what is stored, count its number up here, let its reader take the older ones, add a data folder of the code before
(``tests/formats/make_application.py``) and a line to ``docs/formats.md``. A test compares the two lists.
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
    """As ``docs/formats.md`` lists it."""
    newest: int
    remedy: str
    """What helps beside an upgrade: an alternative, in words that may follow an "or"."""

    def check(self, found: int, where: str, remedy: str = "") -> None:
        """Raises UsageError when data that is ``where`` has a newer format than this code knows."""
        if found > self.newest:
            raise UsageError(
                f"{where} was written by a newer Headwater",
                got=f"format {found}",
                expected=f"at most {self.newest}",
                hint=f"install that version again, or {remedy or self.remedy}",
            )

    def decode(self, data: bytes, kind: type[T], where: str, remedy: str = "") -> T:
        """JSON as a struct with a field ``format``. A newer format is refused as such, whatever else has changed in it."""
        try:
            found = from_json(data, kind)
        except msgspec.ValidationError:
            self.check(_format_of(data), where, remedy)
            raise
        self.check(getattr(found, "format"), where, remedy)  # noqa: B009  a field of every such struct
        return found

    def verify(self, data: bytes, where: str, remedy: str = "") -> bytes:
        """JSON that says its format, or not, and is read as something else than a struct: itself, unless its format is newer."""
        self.check(_format_of(data), where, remedy)
        return data


def _format_of(data: bytes) -> int:
    try:
        return from_json(data, _Named).format
    except msgspec.MsgspecError:
        return 1


RESULT: Final = Format("result", 2, "rebuild the view from the log: headwater view reset NAME --accept-loss")
STATE_FILE: Final = Format("state file", 1, "rebuild the view from the log: headwater view reset NAME")
STATE_COPY: Final = Format("state copy", 1, "remove the folder: it is made again from the state files")
BOUNDS: Final = Format("real-time bounds", 1, "rebuild the view from the log: headwater view reset NAME")
SAVED: Final = Format("saved checkpoint", 1, "rebuild the view from the log: headwater view reset NAME")
VIEW_TABLE: Final = Format("view table", 1, "remove the file: it is filled again from the log")
CAPTURE: Final = Format("capture state", 1, "capture the database under another name")
CAPTURE_SCHEMA: Final = Format("capture schema", 1, "capture the database under another name")
CONTROL: Final = Format("capture command", 1, "send the command with this version")
NOTICE: Final = Format("capture notice", 1, "look at the topic with any Kafka client")
KEPT_ROWS: Final = Format("kept rows", 1, "remove the file: it is made again from the log")
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
SPILL: Final = Format("spill", 1, "give the writer another spill folder")

FORMATS: Final = {
    each.name: each
    for each in (
        RESULT,
        STATE_FILE,
        STATE_COPY,
        BOUNDS,
        SAVED,
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
        SPILL,
    )
}
"""All of them by their names, in the order of ``docs/formats.md``."""
