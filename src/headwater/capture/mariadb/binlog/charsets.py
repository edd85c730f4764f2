"""Charsets: the character sets of one server, decoded as the server decodes them.

The server converts the texts of a snapshot; those of the binlog are bytes in the character set of their
column. Python's codecs of the same names differ from the server's in hundreds of characters, and some sets
have no codec. So the server is queried once for the characters of each set; only Unicode sets are decoded
without it. A code without a character becomes a question mark, as the server shows it to clients.
"""

import codecs
import re
from collections.abc import Callable
from typing import Any, Final

from headwater.capture.envelope import quote_text
from headwater.errors import CaptureError

__all__ = ["QUOTE", "Charsets", "quote_surrogates"]

UNICODE: Final = {
    "utf8mb4": "utf-8",
    "utf8mb3": "utf-8",
    "utf8": "utf-8",
    "binary": "utf-8",  # labels of an enum; other values of this set are bytes
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "gb18030": "gb18030",  # on MySQL; it also encodes all of Unicode
}
BYTE: Final = "(SELECT 0 n" + "".join(f" UNION ALL SELECT {n}" for n in range(1, 256)) + ")"
THREE: Final = 0x8F
"""The first byte of characters of three bytes, in both sets that have them."""
QUOTE: Final = "quote if 0xED not in b else quote_surrogates"
"""Source code: the function that quotes UTF-8 texts in ``b``. Surrogates begin with the byte 0xED."""

Decode = Callable[[bytes], str]


class Charsets:
    """Decoders of texts; it queries the server once for each character set, on a connection of its own."""

    def __init__(self, connection: Any, *, mariadb: bool) -> None:
        self._connection = connection
        source = "collation_character_set_applicability" if mariadb else "collations"
        collations = self._rows(
            f"SELECT id, character_set_name, maxlen FROM information_schema.{source}"  # noqa: S608  one of two
            " JOIN information_schema.character_sets USING (character_set_name) WHERE id IS NOT NULL"
        )
        self._sets = {int(number): (str(name), int(size)) for number, name, size in collations}
        """By collation number: the name of the character set, and the most bytes of a character."""
        self._decoders: dict[str, Decode] = {}

    def plain(self, collation: int) -> bool:
        """Whether texts of a collation are UTF-8."""
        return UNICODE.get(self._sets[collation][0]) == "utf-8"

    def decoder(self, collation: int) -> Decode:
        """The function from the bytes of a text to the text."""
        name, size = self._sets[collation]
        if name not in self._decoders:
            self._decoders[name] = _unicode(name) if name in UNICODE else self._learn(name, size)
        return self._decoders[name]

    def _learn(self, name: str, size: int) -> Decode:
        if size > 3:
            raise CaptureError(f"character set {name} is not supported", hint="convert the column to utf8mb4")
        single = self._texts(name, "CHAR(a.n)", "a")
        one = [single[n,] for n in range(256)]
        same = "".join(one[:128]) == bytes(range(128)).decode()
        if size == 1:
            table = "".join(one)
            return lambda raw: (
                raw.decode() if same and raw.isascii() else codecs.charmap_decode(raw, "strict", table)[0]
            )
        characters = {bytes((n,)): text for n, text in enumerate(one)}
        first = [n for n, text in enumerate(one) if text == "?" and n != ord("?")]
        for pair, text in self._texts(name, "CHAR(a.n, b.n)", "a", "b").items():
            if len(text) == 1:
                characters[bytes(pair)] = text
        if size == 3:
            for pair, text in self._texts(name, f"CHAR({THREE}, a.n, b.n)", "a", "b").items():
                characters[bytes((THREE, *pair))] = text[:1]
        lead = b"".join(re.escape(bytes((n,))) for n in first)
        split = re.compile((b"\x8f..|" if size == 3 else b"") + b"[" + lead + b"].|.", re.DOTALL).findall
        character = characters.get
        return lambda raw: (
            raw.decode() if same and raw.isascii() else "".join([character(code, "?") for code in split(raw)])
        )

    def _texts(self, name: str, code: str, *digits: str) -> dict[tuple[int, ...], str]:
        """The server's characters of all codes of one length, by their variable bytes."""
        selected = ", ".join(f"{digit}.n" for digit in digits)
        rows = self._rows(
            f"SELECT {selected}, HEX(CONVERT(CONVERT({code} USING {name}) USING utf8mb4))"  # noqa: S608  a server's name
            f" FROM {', '.join(f'{BYTE} {digit}' for digit in digits)}"
        )
        return {tuple(map(int, at)): bytes.fromhex(text or "3f").decode() for *at, text in rows}

    def _rows(self, query: str) -> Any:
        cursor = self._connection.cursor()
        cursor.execute(query)
        return cursor.fetchall()


def _unicode(name: str) -> Decode:
    codec, errors = UNICODE[name], "strict" if name == "gb18030" else "surrogatepass"

    def decode(raw: bytes) -> str:
        try:
            return raw.decode(codec, errors)
        except UnicodeDecodeError as error:
            raise CaptureError(
                f"a text is not {name}", got=raw[:100].hex(), hint="convert the column to utf8mb4"
            ) from error

    return decode


def quote_surrogates(text: str) -> str:
    """`quote_text` for the piece of a UTF-8 text that may have single surrogates."""
    raw = text.encode("latin-1")
    return quote_text(raw.decode("utf-8", "surrogatepass"))
