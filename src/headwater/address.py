"""Addresses of databases and stores: what of them may be printed, their options, and those of PostgreSQL checked before a driver reads them.

A driver that cannot read an address quotes it, password and all, and one that reads it otherwise than it was meant takes the end of a
password for a host. So such an address is refused here, in words that repeat nothing of it. One that passes over an option that it does
not know leaves a connection without TLS that was meant to have it: an unknown option is refused too.
"""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from headwater.errors import UsageError

__all__ = ["check_local", "check_postgres", "options", "postgres_database", "shown"]

HOST = r"(?:\[[0-9A-Fa-f:.%]*\]|[^/?#@:,\s\[\]]*)(?::\d*)?"
ADDRESS = re.compile(
    rf"([A-Za-z][\w+.-]*)://(?:([^/?#:@\s]*)[^/?#\s]*@)?({HOST}(?:,{HOST})*)((?:/[^?#@]*)?)(?:[?#][^@]*)?"
)
"""Scheme, user, hosts and path. Where a password has ``/``, ``?`` or ``#`` as they are, nobody can tell what stands where."""
HIDDEN = "***"
ESCAPES = "in a password write @ as %40, / as %2F, ? as %3F, # as %23 and % as %25"


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


def options(what: str, url: str, known: Sequence[str] = (), *, hint: str = "") -> dict[str, str]:
    """What an address has after its ``?``; UsageError for an option that is none of the known ones, and for an address that is unclear.

    ``hint`` says where options are given instead, if there are others.
    """
    if "?" not in url and "#" not in url:
        return {}
    if ADDRESS.fullmatch(url) is None:
        raise UsageError(f"{what}: the address is unclear", hint=ESCAPES)
    if "#" in url:
        raise UsageError(f"{what}: the address has something after a #", hint=ESCAPES)
    found = dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))
    for name in found:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        meant = f"did you mean {near[0]!r}?" if near else ""
        raise UsageError(
            f"{what}: the address has an option that is not known",
            got=repr(name),
            expected=f"of {', '.join(known)}" if known else "none",
            hint=" ".join(filter(None, (meant, hint))),
        )
    return found


def check_local(what: str, path: str | Path, *, hint: str = "") -> None:
    """UsageError for a path that is an address: it would be a folder of a strange name on this machine."""
    if re.match(r"\w{2,}:/", str(path)):  # pathlib has made one slash of two
        scheme = str(path).partition(":")[0]
        raise UsageError(
            f"{what}: the path is an address",
            got=f"{scheme}://…",
            expected="a path of this machine",
            hint=hint,
        )


def check_postgres(what: str, url: str) -> None:
    """UsageError for an address that libpq cannot read, or reads otherwise than it looks. Needs the driver."""
    if "://" in url and ADDRESS.fullmatch(url) is not None:
        from psycopg.pq import Conninfo  # noqa: PLC0415  optional

        options(what, url, [*(each.keyword.decode() for each in Conninfo.get_defaults()), "ssl"])
    if _read(url) is None:
        raise UsageError(
            f"{what}: the address is none of a PostgreSQL",
            expected="postgresql://user:password@host:5432/database",
            hint=ESCAPES,
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
