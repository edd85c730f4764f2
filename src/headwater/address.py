"""Addresses of databases and stores: what of them may be printed, and those of PostgreSQL checked before a driver reads them.

A driver that cannot read an address quotes it, password and all, and one that reads it otherwise than it was meant takes the end of a
password for a host. So such an address is refused here, in words that repeat nothing of it.
"""

import re
from typing import Any

from headwater.errors import UsageError

__all__ = ["check_postgres", "postgres_database", "shown"]

HOST = r"(?:\[[0-9A-Fa-f:.%]*\]|[^/?#@:,\s\[\]]*)(?::\d*)?"
ADDRESS = re.compile(
    rf"([A-Za-z][\w+.-]*)://(?:([^/?#:@\s]*)[^/?#\s]*@)?({HOST}(?:,{HOST})*)((?:/[^?#@]*)?)(?:[?#][^@]*)?"
)
"""Scheme, user, hosts and path. Where a password has ``/``, ``?`` or ``#`` as they are, nobody can tell what stands where."""
HIDDEN = "***"


def shown(url: str, *, user: bool = False) -> str:
    """An address as it may be printed: without password and query, where secrets stand. One that is unclear is not printed at all."""
    found = ADDRESS.fullmatch(url)
    if found is not None:
        who = f"{found[2]}@" if user and found[2] else ""
        return f"{found[1]}://{who}{found[3]}{found[4]}"
    if not any(mark in url for mark in ("//", "@", "=")):
        return url  # a path
    scheme, mark, _ = url.partition("://")
    return f"{scheme}://{HIDDEN}" if mark and scheme.isalnum() else HIDDEN


def check_postgres(what: str, url: str) -> None:
    """UsageError for an address that libpq cannot read, or reads otherwise than it looks. Needs the driver."""
    if _read(url) is None:
        raise UsageError(
            f"{what}: the address is none of a PostgreSQL",
            expected="postgresql://user:password@host:5432/database",
            hint="in a password write @ as %40, / as %2F, ? as %3F, # as %23 and % as %25",
        )


def postgres_database(url: str) -> str:
    """The database that an address names, by whatever user and with whatever options; it may be printed. Needs the driver."""
    read = _read(url)
    if read is None:
        return shown(url)
    host = read.get("host") or read.get("hostaddr") or ""
    return f"postgresql://{host}:{read.get('port', 5432)}/{read.get('dbname') or read.get('user', '')}"


def _read(url: str) -> dict[str, Any] | None:
    """What libpq makes of an address; None where that is not what it looks like."""
    from psycopg import ProgrammingError  # noqa: PLC0415  optional
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    try:
        read = conninfo_to_dict(url)
    except ProgrammingError:
        return None
    unclear = "://" in url and ADDRESS.fullmatch(url) is None
    return None if unclear or "@" in str(read.get("host", "")) else read
