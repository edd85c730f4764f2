"""Addresses of databases and stores: their printable form, their options, and checks of them.

A driver that cannot read an address prints it in its error, with the password. One that reads it differently
takes the end of a password for a host. So an unclear address is refused here, with a message that repeats
nothing of it. A driver that ignores an unknown option may leave a connection without the TLS that was meant:
an unknown option is refused too.
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
"""Scheme, user, hosts and path.

If a password contains ``/``, ``?`` or ``#`` unescaped, the parts are ambiguous.
"""
HIDDEN = "***"
ESCAPES = "in a password write @ as %40, / as %2F, ? as %3F, # as %23 and % as %25"


def shown(url: str, *, user: bool = False) -> str:
    """The printable form of an address: without password and query, which hold secrets.

    An unclear address is hidden.
    """
    match = ADDRESS.fullmatch(url)
    if match is not None:
        who = f"{match[2]}@" if user and match[2] else ""
        return f"{match[1]}://{who}{match[3]}{match[4]}"
    if not any(mark in url for mark in ("//", "@", "=")):
        return url  # a path
    scheme, mark, _ = url.partition("://")
    return f"{scheme}://{HIDDEN}" if mark and scheme.isalnum() else HIDDEN


def options(what: str, url: str, known: Sequence[str] = (), *, hint: str = "") -> dict[str, str]:
    """The options after the ``?`` of an address.

    UsageError for one that is not among ``known``, or an unclear address. ``hint`` says where else options
    can be given.
    """
    if "?" not in url and "#" not in url:
        return {}
    if ADDRESS.fullmatch(url) is None:
        raise UsageError(f"{what}: the address is unclear", hint=ESCAPES)
    if "#" in url:
        raise UsageError(f"{what}: the address has something after a #", hint=ESCAPES)
    parsed = dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))
    for name in parsed:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        meant = f"did you mean {near[0]!r}?" if near else ""
        raise UsageError(
            f"{what}: the address has an unknown option",
            got=repr(name),
            expected=f"of {', '.join(known)}" if known else "none",
            hint=" ".join(filter(None, (meant, hint))),
        )
    return parsed


def check_local(what: str, path: str | Path, *, hint: str = "") -> None:
    """UsageError for a path that is an address: it would be an odd folder on this machine."""
    if re.match(r"\w{2,}:/", str(path)):  # pathlib has replaced the two slashes by one
        scheme = str(path).partition(":")[0]
        raise UsageError(
            f"{what}: the path is an address",
            got=f"{scheme}://…",
            expected="a path of this machine",
            hint=hint,
        )


def check_postgres(what: str, url: str) -> None:
    """UsageError for an address that libpq cannot read, or reads differently than expected.

    Needs the driver.
    """
    if "://" in url and ADDRESS.fullmatch(url) is not None:
        from psycopg.pq import Conninfo  # noqa: PLC0415  optional

        options(what, url, [*(option.keyword.decode() for option in Conninfo.get_defaults()), "ssl"])
    if _read(url) is None:
        raise UsageError(
            f"{what}: the address is not that of a PostgreSQL",
            expected="postgresql://user:password@host:5432/database",
            hint=ESCAPES,
        )


def postgres_database(url: str) -> str:
    """The database that an address names, without user and options, so it may be printed.

    Needs the driver.
    """
    read = _read(url)
    if read is None:
        return shown(url)
    host = read.get("host") or read.get("hostaddr") or ""
    return f"postgresql://{host}:{read.get('port', 5432)}/{read.get('dbname') or read.get('user', '')}"


def _read(url: str) -> dict[str, Any] | None:
    """The parts that libpq finds in an address; None if they are not what they look like."""
    from psycopg import ProgrammingError  # noqa: PLC0415  optional
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    try:
        read = conninfo_to_dict(url)
    except ProgrammingError:
        return None
    unclear = "://" in url and ADDRESS.fullmatch(url) is None
    return None if unclear or "@" in str(read.get("host", "")) else read
