"""Charsets: the character sets of one server, read as the server itself reads them.

The server converts the texts of a snapshot; those of the binlog are bytes in the set of their column. Python's codecs of the same names
differ from the server's in hundreds of characters, and some sets have none. So the server is asked once what each code of a set is.
Only sets of Unicode are decoded without it. A code without a character is a question mark, as the server shows it to its clients.
"""

import codecs
import re
from collections.abc import Callable
from typing import Any, Final

from headwater.capture.envelope import written
from headwater.errors import CaptureError

__all__ = ["PLAIN", "Charsets", "checked"]

UNICODE: Final = {
    "utf8mb4": "utf-8",
    "utf8mb3": "utf-8",
    "utf8": "utf-8",
    "binary": "utf-8",  # labels of an enum; other texts of that set are bytes
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "gb18030": "gb18030",  # MySQL's, and all of Unicode as well
}
BYTE: Final = "(SELECT 0 n" + "".join(f" UNION ALL SELECT {n}" for n in range(1, 256)) + ")"
THREE: Final = 0x8F
"""The byte in front of a character of three, in both sets that have such."""
PLAIN: Final = "quoted if 0xED not in b else checked"
"""Source code: what writes texts of UTF-8 that lie in ``b``. A half of a character begins with that byte."""

Decode = Callable[[bytes], str]


class Charsets:
    """Asks over a connection that nothing else uses meanwhile, once for each set that a column of the stream has."""

    def __init__(self, connection: Any, *, mariadb: bool) -> None:
        self._connection = connection
        source = "collation_character_set_applicability" if mariadb else "collations"
        found = self._ask(
            f"SELECT id, character_set_name, maxlen FROM information_schema.{source}"  # noqa: S608  one of two
            " JOIN information_schema.character_sets USING (character_set_name) WHERE id IS NOT NULL"
        )
        self._sets = {int(number): (str(name), int(size)) for number, name, size in found}
        """Name and greatest size of a character, by the numbers of collations."""
        self._decoders: dict[str, Decode] = {}

    def plain(self, collation: int) -> bool:
        """Whether texts of a collation are UTF-8 already."""
        return UNICODE.get(self._sets[collation][0]) == "utf-8"

    def decoder(self, collation: int) -> Decode:
        """What makes text of the bytes of a column."""
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
        known = {bytes((n,)): text for n, text in enumerate(one)}
        first = [n for n, text in enumerate(one) if text == "?" and n != ord("?")]
        for pair, text in self._texts(name, "CHAR(a.n, b.n)", "a", "b").items():
            if len(text) == 1:
                known[bytes(pair)] = text
        if size == 3:
            for pair, text in self._texts(name, f"CHAR({THREE}, a.n, b.n)", "a", "b").items():
                known[bytes((THREE, *pair))] = text[:1]
        lead = b"".join(re.escape(bytes((n,))) for n in first)
        cut = re.compile((b"\x8f..|" if size == 3 else b"") + b"[" + lead + b"].|.", re.DOTALL).findall
        say = known.get
        return lambda raw: (
            raw.decode() if same and raw.isascii() else "".join([say(code, "?") for code in cut(raw)])
        )

    def _texts(self, name: str, code: str, *digits: str) -> dict[tuple[int, ...], str]:
        """What the server makes of each code, by the bytes that are counted through."""
        shown = ", ".join(f"{digit}.n" for digit in digits)
        found = self._ask(
            f"SELECT {shown}, HEX(CONVERT(CONVERT({code} USING {name}) USING utf8mb4))"  # noqa: S608  the server's name
            f" FROM {', '.join(f'{BYTE} {digit}' for digit in digits)}"
        )
        return {tuple(map(int, at)): bytes.fromhex(text or "3f").decode() for *at, text in found}

    def _ask(self, query: str) -> Any:
        cursor = self._connection.cursor()
        cursor.execute(query)
        return cursor.fetchall()


def _unicode(name: str) -> Decode:
    codec, passed = UNICODE[name], "strict" if name == "gb18030" else "surrogatepass"

    def decode(raw: bytes) -> str:
        try:
            return raw.decode(codec, passed)
        except UnicodeDecodeError as error:
            raise CaptureError(
                f"a text is not {name}", got=raw[:100].hex(), hint="convert the column to utf8mb4"
            ) from error

    return decode


def checked(text: str) -> str:
    """`written` of the piece of a text that the server sent as UTF-8 and that may have such halves."""
    raw = text.encode("latin-1")
    return written(raw.decode("utf-8", "surrogatepass"))
