"""The types that SQLite's columns may declare. Any of them may hold any value: the database says what it has stored."""

from typing import Any

from capture.kinds import TEXTS, Kind, double, raw, whole

DECLARED = [
    "INTEGER",
    "REAL",
    "TEXT",
    "BLOB",
    "NUMERIC",
    "",
    "BOOLEAN",
    "DATETIME",
    "VARCHAR(9)",
    "DECIMAL(10,2)",
    "DOUBLE",
    "ANY",
]
NUMBERS = ["0", "1", "-1", "9223372036854775807", "-9223372036854775808", "9007199254740993"]
REALS = ["0.0", "-0.0", "1.0", "0.1", "-1e308", "5e-324", "9e999", "-9e999", "1e15", "9223372036854775808"]
BYTES = ["x''", "x'00'", "x'ff5c2722'", "x'3130'"]
BROKEN = ["CAST(x'ff41' AS TEXT)", "CAST(x'eda080' AS TEXT)", "CAST(x'c3' AS TEXT)"]
"""Texts that are not UTF-8, which SQLite keeps all the same."""
SHOWN = (
    "typeof({0}) || ':' || CASE typeof({0}) WHEN 'blob' THEN hex({0}) WHEN 'text' THEN hex(CAST({0} AS BLOB))"
    " WHEN 'real' THEN printf('%!.17g', {0}) ELSE coalesce({0}, '') END"
)


def _same(found: Any, text: str) -> bool:
    kind, _, shown = text.partition(":")
    if kind == "integer":
        return whole(found, shown)
    if kind == "real":
        if float(shown) == 0:  # SQLite does not show the sign of a zero
            return isinstance(found, float) and found == 0
        return double(found, {"Inf": "Infinity", "-Inf": "-Infinity"}.get(shown, shown))
    if kind == "text":
        return isinstance(found, str) and _bytes(found) == bytes.fromhex(shown)
    return raw(found, shown) if kind == "blob" else found is None


def _bytes(text: str) -> bytes:
    """What a text was in the file; a byte that is not UTF-8 is half a character of JSON."""
    return text.encode("utf-8", "surrogateescape")


def kinds() -> list[Kind]:
    """All of them."""
    texts = [f"CAST(x'{text.encode().hex()}' AS TEXT)" for text in [*TEXTS, "tail\0", "12", "1.50", "1e3"]]
    literals = [*NUMBERS, *REALS, *BYTES, *BROKEN, *texts]
    return [Kind(declared, literals, _same, SHOWN) for declared in DECLARED for _ in range(4)]
