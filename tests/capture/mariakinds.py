"""The types of MariaDB, in every character set."""

import random
from collections.abc import Iterable

from capture.kinds import (
    TEXTS,
    Kind,
    bits,
    dates,
    day,
    decimal,
    digits,
    double,
    integers,
    moment,
    octets,
    plain,
    raw,
    single,
    span,
    whole,
)

MODES = [
    "",
    "STRICT_ALL_TABLES",
    "STRICT_TRANS_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO",
    "PAD_CHAR_TO_FULL_LENGTH",
    "ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES",
    "ALLOW_INVALID_DATES",
    "TIME_ROUND_FRACTIONAL",
    "HIGH_NOT_PRECEDENCE,IGNORE_SPACE,REAL_AS_FLOAT",
]
"""What sessions may be set to; the capture's own are not."""
UNICODE = {"utf8mb3", "utf8mb4", "ucs2", "utf16", "utf16le", "utf32"}


def _integers() -> list[Kind]:
    found = []
    for name, size in (("tinyint", 8), ("smallint", 16), ("mediumint", 24), ("int", 32), ("bigint", 64)):
        low, high = -(1 << size - 1), (1 << size - 1) - 1
        edges = [str(n) for n in (low, -1, 0, 1, high)]
        found.append(Kind(name, edges, whole, more=integers(low, high)))
        wide = [str(n) for n in (0, 1, high, high + 1, (1 << size) - 1)]
        found.append(Kind(f"{name} unsigned", wide, whole, more=integers(0, (1 << size) - 1)))
        found.append(Kind(f"{name}(9) zerofill", wide, whole))
    return found


def _decimals() -> list[Kind]:
    sizes = [(1, 0), (1, 1), (5, 2), (9, 9), (10, 5), (18, 9), (19, 9), (38, 9), (65, 0), (65, 30), (65, 38)]
    found = [
        Kind(
            f"decimal({p},{s})",
            [
                "0",
                "-0",
                "1e-38",
                f"-{'9' * (p - s) or '0'}.{'9' * s or '0'}",
                f"{'9' * (p - s) or '0'}.{'9' * s or '0'}",
            ],
            decimal(s),
            more=digits(p, s),
        )
        for p, s in sizes
    ]
    return [*found, Kind("decimal(8,2) unsigned zerofill", ["0", "7.25", "999999.99"], decimal(2))]


def _times() -> list[Kind]:
    found = [
        Kind("year", ["0", "1901", "1970", "2155", "2026"], whole),
        Kind(
            "date",
            ["'0001-01-01'", "'1000-01-01'", "'1969-12-31'", "'1970-01-01'", "'9999-12-31'", "'2024-02-29'"],
            day,
        ),
    ]
    for n in range(7):
        edges = [
            f"'{sign}{at}'"
            for sign in ("", "-")
            for at in ("00:00:00.000001", "838:59:59.999999", "23:59:59.999999")
        ]
        found.append(Kind(f"time({n})", edges, span(1)))
        stamps = [
            "'0001-01-01'",
            "'1000-01-01'",
            "'1969-12-31 23:59:59.999999'",
            "'1970-01-01'",
            "'9999-12-31 23:59:59'",
        ]
        unit = 1000 if n <= 3 else 1
        found.append(Kind(f"datetime({n})", stamps, moment(unit), more=dates(1, 9998, "'{0}'")))
        near = [
            "'1970-01-01 00:00:01'",
            "'2038-01-19 03:14:07'",
            "'2026-03-29 01:30:00.123456'",
            "'2026-10-25 01:30:00'",
        ]
        found.append(
            Kind(
                f"timestamp({n})",
                near,
                lambda found, text: bool(found == f"{text.replace(' ', 'T')}Z"),
                more=dates(1971, 2037, "'{0}'"),
            )
        )
    return found


def _bytes() -> list[Kind]:
    edges = ["''", "x'00'", "x'ff00'", "x'5c27220a'", "x'efbfbd'", "x'2020'"]
    hexadecimal = "HEX({0})"
    return [
        *(
            Kind(
                f"bit({n})",
                ["0", "1", f"(1 << {n}) - 1", f"1 << {n - 1}"],
                bits,
                f"LPAD(BIN({{0}}), {n}, '0')",
            )
            for n in (1, 2, 8, 9, 63)
        ),
        Kind("bit(64)", ["0", "~0", "1 << 63"], bits, "LPAD(BIN({0}), 64, '0')"),
        Kind("boolean", ["0", "1", "-128"], whole),
        Kind("binary(5)", edges[:4], raw, hexadecimal, more=octets(5, "x'{0}'")),
        Kind("varbinary(40)", edges, raw, hexadecimal, more=octets(40, "x'{0}'")),
        *(
            Kind(f"{name}blob", edges, raw, hexadecimal, key=False, more=octets(255, "x'{0}'"))
            for name in ("tiny", "", "medium", "long")
        ),
        Kind(
            "uuid",
            ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "'00000000-0000-0000-0000-000000000000'", "uuid()"],
            plain,
        ),
        Kind("inet4", ["'0.0.0.0'", "'255.255.255.255'", "'10.0.0.1'"], plain),
        Kind("inet6", ["'::'", "'::1'", "'::ffff:10.0.0.1'", "'2001:db8::ff00:42:8329'", "'ffff::'"], plain),
        Kind(
            "point",
            ["point(1.5, -2)", "point(0, 0)"],
            lambda found, text: raw(found["wkb"], text),
            "HEX(ST_AsWKB({0}))",
            key=False,
        ),
        Kind(
            "geometry",
            ["ST_GeomFromText('LINESTRING(0 0, 1 1)', 4326)"],
            lambda found, text: raw(found["wkb"], text) and found["srid"] == 4326,
            "HEX(ST_AsWKB({0}))",
            key=False,
        ),
        Kind("json", ["'{}'", "'[1, \"é\", null]'", "'{\"a\":  1.0}'", "'\"\\\\u0000\"'"], plain, key=False),
        Kind("enum('a','b''c','ü','','\"')", ["'a'", "'b''c'", "'ü'", "''", "'\"'"], plain, key=False),
        Kind("set('x','y y','\"z','é')", ["''", "'x'", "'x,y y'", "'x,y y,\"z,é'"], plain),
    ]


def _floats() -> list[Kind]:
    doubles = [
        "0",
        "-0e0",
        "0.1",
        "-0.1",
        "1e22",
        "1e23",
        "5e-324",
        "2.2250738585072014e-308",
        "1.7976931348623157e308",
        "9007199254740993",
    ]
    singles = ["0", "-0e0", "1.1", "16777217", "3.4028234e38", "1.1754944e-38", "-0.333333333"]
    exact = "{0} + 0e0"
    chance = lambda form: lambda r: form.format(r.uniform(-1, 1) * 10.0 ** r.randint(-30, 30))  # noqa: E731
    return [
        Kind("double", doubles, double, exact, more=chance("{!r}")),
        Kind("float", singles, single, exact, key=False, more=chance("{:.7e}")),
        Kind("float(7,3)", ["1234.567", "-0.0005", "0"], single, exact, key=False),
        Kind("double(9,2) unsigned", ["1234567.89", "0.005", "0"], double, exact),
    ]


def _texts(name: str, size: int) -> list[Kind]:
    literals = [f"CONVERT(x'{text.encode().hex()}' USING utf8mb4)" for text in TEXTS]
    several = (
        (lambda r: f"CONVERT(CONVERT(x'{_codes(r, size)}' USING {name}) USING utf8mb4)")
        if name not in UNICODE
        else None
    )
    shown = "CONVERT({0} USING utf8mb4)"
    return [
        Kind(f"{base} CHARACTER SET {name}", literals, plain, shown, key=key, more=several)
        for base, key in (("char(9)", True), ("varchar(40)", True), ("text", False), ("varchar(300)", False))
    ]


def _codes(chance: random.Random, size: int) -> str:
    """A few characters that a set with codes of so many bytes may have."""
    singles = [f"{chance.randrange(1, 256):02x}" for _ in range(3)]
    pairs = [f"{chance.randrange(0x81, 0xFF):02x}{chance.randrange(0x40, 0xFF):02x}" for _ in range(3)]
    return "".join(singles if size == 1 else pairs)


def kinds(sets: Iterable[tuple[str, int]]) -> list[Kind]:
    """All of them, texts in each of some character sets."""
    texts = [kind for name, size in sets for kind in _texts(name, size)]
    return [*_integers(), *_decimals(), *_times(), *_bytes(), *_floats(), *texts]
