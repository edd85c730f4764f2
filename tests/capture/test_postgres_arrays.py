"""Arrays of PostgreSQL as JSON, without a server: delimiters and bounds of any kind."""

import json

import pytest

from headwater.capture.postgres.values import Type, Types

TEXT, INT, BOX, TEXTS, INTS, BOXES = 25, 23, 603, 1009, 1007, 1020
TYPES = Types([Type(TEXTS, 0, -1, TEXT), Type(INTS, 0, -1, INT), Type(BOXES, 0, -1, BOX, ";")])


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (BOXES, "{(2,2),(1,1);(4,4),(3,3)}", ["(2,2),(1,1)", "(4,4),(3,3)"]),
        (BOXES, "{NULL;(4,4),(3,3)}", [None, "(4,4),(3,3)"]),
        (TEXTS, '[2:3]={a,"]={b"}', ["a", "]={b"]),
        (TEXTS, '{"]={b",c}', ["]={b", "c"]),
        (TEXTS, '[1:1][-2:-1]={{"x;y",";"}}', [["x;y", ";"]]),
        (TEXTS, '{"a\\\\b","q\\"x",NULL,"NULL",""}', ["a\\b", 'q"x', None, "NULL", ""]),
        (INTS, "[0:1]={5,6}", [5, 6]),
        (INTS, "{}", []),
    ],
)
def test_an_array_has_its_elements_whatever_separates_them_and_where_they_begin(oid, text, expected):
    encode = TYPES.kind(oid, -1).encode
    assert json.loads(encode(text)) == expected
