"""Message layouts for each API key and version, read from ``messages.txt``.

A layout is data: a tree of fields and the versions that have them. ``codec.py`` compiles it; no other module
knows what a version looks like on the wire.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources

__all__ = ["FORMATS", "Api", "Field", "VersionRange", "apis"]

FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
}
"""The number types, and their letters in ``struct``."""

LAST = 99
"""Means "and all later versions" in a range."""


@dataclass(frozen=True, slots=True)
class VersionRange:
    """A closed range of versions."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    @classmethod
    def parse(cls, text: str) -> "VersionRange":
        if text.endswith("+"):
            return cls(int(text[:-1]), LAST)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))


ALWAYS = VersionRange(0, LAST)
NEVER = VersionRange(LAST + 1, LAST)


@dataclass(frozen=True, slots=True)
class Field:
    """One field: ``type`` is the name of a primitive, or ``struct``; ``array`` says whether it repeats."""

    name: str
    type: str
    array: bool
    versions: VersionRange = ALWAYS
    nullable: VersionRange = NEVER
    tag: int | None = None
    default: str | None = None
    fields: "list[Field]" = field(default_factory=list)

    @property
    def is_number(self) -> bool:
        return self.type in FORMATS and not self.array


@dataclass(frozen=True, slots=True)
class Api:
    """The request and response of one API key."""

    name: str
    key: int
    versions: VersionRange
    flexible: VersionRange
    request: list[Field]
    response: list[Field]


@functools.cache
def apis() -> dict[str, Api]:
    """Every API of ``messages.txt`` by name."""
    text = resources.files("headwater.protocol.kafka").joinpath("messages.txt").read_text()
    blocks = re.split(r"\n\s*\n", text.strip())
    return {api.name: api for api in map(_parse_api, blocks[1:])}


_HEAD = re.compile(r"(\w+) (\d+) versions (\S+) flexible (\S+)")


def _parse_api(block: str) -> Api:
    head, *lines = block.splitlines()
    match = _HEAD.fullmatch(head)
    assert match, head  # noqa: S101  our own data file
    name, key, versions, flexible = match.groups()
    split = lines.index("  response")
    return Api(
        name=name,
        key=int(key),
        versions=VersionRange.parse(versions),
        flexible=NEVER if flexible == "never" else VersionRange(int(flexible), LAST),
        request=_parse_fields(iter(lines[1:split])),
        response=_parse_fields(iter(lines[split + 1 :])),
    )


def _parse_fields(lines: Iterator[str]) -> list[Field]:
    top: list[Field] = []
    open_levels = {2: top}
    for line in lines:
        depth = (len(line) - len(line.lstrip())) // 2
        parsed = _parse_field(line)
        open_levels[depth].append(parsed)
        open_levels[depth + 1] = parsed.fields
    return top


_FIELD = re.compile(
    r"(?P<name>\w+)\s+(?P<array>\[\])?(?P<type>\w+)?"
    r"(?:\s+(?P<versions>\d+(?:-\d+|\+)?))?"
    r"(?:\s+(?P<null>null)(?: (?P<null_versions>\d+(?:-\d+|\+)?))?)?"
    r"(?:\s+tag (?P<tag>\d+))?"
    r"(?:\s+= (?P<default>\S+))?"
)


def _parse_field(line: str) -> Field:
    match = _FIELD.fullmatch(line.strip())
    assert match, line  # noqa: S101  our own data file
    part = match.groupdict()
    nullable = VersionRange.parse(part["null_versions"] or "0+") if part["null"] else NEVER
    return Field(
        name=part["name"],
        type=part["type"] or "struct",
        array=part["array"] is not None,
        versions=VersionRange.parse(part["versions"]) if part["versions"] else ALWAYS,
        nullable=nullable,
        tag=int(part["tag"]) if part["tag"] else None,
        default=part["default"],
    )
