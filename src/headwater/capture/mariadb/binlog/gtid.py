"""GTID sets: the transactions that a replica has.

MariaDB has the newest number of each domain, MySQL ranges of each server.
"""

import struct
from typing import Protocol
from uuid import UUID

from headwater.capture.mariadb.binlog.events import Gtid
from headwater.errors import CaptureError

__all__ = ["NOTHING", "Gtids", "MariaGtids", "MySqlGtids", "gtids"]

NOTHING = "-"
"""The text of an empty set, since a position is never an empty text."""


class Gtids(Protocol):
    """A set of transactions."""

    def add(self, gtid: Gtid) -> str:
        """Adds a transaction, and returns its text."""

    def has(self, name: str) -> bool:
        """Whether the set contains a transaction, given as text."""

    def includes(self, text: str) -> bool:
        """Whether the set contains all transactions of another set, given as text."""

    def __str__(self) -> str:
        """The text of the set, as in a position."""


def gtids(text: str, *, mariadb: bool) -> Gtids:
    """A set from its text."""
    try:
        return MariaGtids(text) if mariadb else MySqlGtids(text)
    except (ValueError, IndexError):
        raise CaptureError(
            "the capture's position is not a set of transactions of this server",
            got=text,
            expected="like 0-1-100" if mariadb else "like 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-100",
            hint="take a new snapshot",
        ) from None


class MariaGtids:
    """MariaDB's ``domain-server-number``, one for each domain: in a domain, numbers only grow."""

    def __init__(self, text: str) -> None:
        self._newest: dict[int, str] = {}
        for name in () if text in {"", NOTHING} else text.split(","):
            domain, server, number = map(int, name.strip().split("-"))
            self._newest[domain] = f"{domain}-{server}-{number}"

    def add(self, gtid: Gtid) -> str:
        text = f"{gtid.domain}-{gtid.server}-{gtid.number}"
        self._newest[int(gtid.domain)] = text
        return text

    def has(self, name: str) -> bool:
        domain, _, number = name.split("-")
        newest = self._newest.get(int(domain))
        return newest is not None and int(number) <= int(newest.rpartition("-")[2])

    def includes(self, text: str) -> bool:
        return text in {"", NOTHING} or all(self.has(name.strip()) for name in text.split(","))

    def __str__(self) -> str:
        if len(self._newest) == 1:
            return next(iter(self._newest.values()))
        return ",".join(self._newest[domain] for domain in sorted(self._newest)) or NOTHING


class MySqlGtids:
    """MySQL's ``uuid:1-5:7``: ranges of numbers for each server that has written."""

    def __init__(self, text: str) -> None:
        self._ranges = _ranges(text)

    def add(self, gtid: Gtid) -> str:
        name, number = str(gtid.domain), gtid.number
        ranges = self._ranges.setdefault(name, [])
        for at, (first, last) in enumerate(ranges):
            if first <= number <= last:
                break
            if number == last + 1:
                ranges[at][1] = number
                if at + 1 < len(ranges) and ranges[at + 1][0] == number + 1:
                    ranges[at][1] = ranges.pop(at + 1)[1]
                break
        else:
            ranges.append([number, number])
            ranges.sort()
        return f"{name}:{number}"

    def has(self, name: str) -> bool:
        server, _, number = name.partition(":")
        return any(first <= int(number) <= last for first, last in self._ranges.get(server, ()))

    def includes(self, text: str) -> bool:
        return all(
            any(a <= first and last <= b for a, b in self._ranges.get(server, ()))
            for server, ranges in _ranges(text).items()
            for first, last in ranges
        )

    def __str__(self) -> str:
        return (
            ",".join(
                f"{name}:"
                + ":".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)
                for name, ranges in sorted(self._ranges.items())
            )
            or NOTHING
        )

    def packed(self) -> bytes:
        """The set in the format of COM_BINLOG_DUMP_GTID, where the ends of ranges are exclusive."""
        packed = struct.pack("<Q", len(self._ranges))
        for name, ranges in sorted(self._ranges.items()):
            packed += UUID(name).bytes + struct.pack("<Q", len(ranges))
            packed += b"".join(struct.pack("<QQ", first, last + 1) for first, last in ranges)
        return packed


def _ranges(text: str) -> dict[str, list[list[int]]]:
    by_server: dict[str, list[list[int]]] = {}
    for server in () if text in {"", NOTHING} else text.replace("\n", "").split(","):
        name, *ranges = server.strip().split(":")
        bounds = (list(map(int, part.split("-"))) for part in ranges)
        by_server[str(UUID(name))] = sorted([bound[0], bound[-1]] for bound in bounds)
    return by_server
