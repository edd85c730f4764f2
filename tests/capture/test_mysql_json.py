"""MySQL's binary JSON, by documents put together after its description."""

import json
import struct

import pytest

from headwater.capture.mariadb.binlog.binary_json import json_text


def small(kind, entries, keys=()):
    """A small container: entries are (type, two bytes) or (type, bytes that follow the entries)."""
    head = 4 + len(keys) * 4 + len(entries) * 3
    body, key_table, value_table = b"", b"", b""
    for key in keys:
        key_table += struct.pack("<HH", head + len(body), len(key))
        body += key
    for entry, data in entries:
        if entry in {4, 5, 6}:
            value_table += bytes((entry,)) + data
        else:
            value_table += struct.pack("<BH", entry, head + len(body))
            body += data
    whole = key_table + value_table + body
    return bytes((kind,)) + struct.pack("<HH", len(entries), 4 + len(whole)) + whole


TEXT = "é" * 100


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"\x04\x00", None),
        (b"\x04\x01", True),
        (b"\x05\xff\xff", -1),
        (b"\x0a" + b"\xff" * 8, 2**64 - 1),
        (b"\x0b" + struct.pack("<d", 0.1), 0.1),
        (b"\x0c\x02\xc3\xa9", "é"),
        (b"\x0c\xc8\x01" + TEXT.encode(), TEXT),
        (small(2, [(5, b"\x01\x00"), (4, b"\x02\x00"), (12, b"\x01x")]), [1, False, "x"]),
        (small(0, [(12, b"\x01x"), (9, struct.pack("<q", -5))], [b"a", b"bc"]), {"a": "x", "bc": -5}),
        (small(0, [(2, small(2, [(6, b"\xff\xff")])[1:])], [b"a"]), {"a": [65535]}),
        (b"\x0f\xf6\x04\x04\x02\x8c\x22", 12.34),
        (b"\x0f\xf6\x04\x04\x02\x73\xdd", -12.34),
    ],
)
def test_a_document_comes_out_as_its_text(raw, value):
    assert json.loads(json_text(raw)) == value
