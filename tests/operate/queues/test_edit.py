"""Edits of messages on their way back from the dead letters."""

import msgspec
import pytest

from headwater.errors import UsageError
from headwater.operate.queues.edit import parse_edit
from headwater.record import Record

MESSAGE = Record(b"ada", b'{"to": "x", "tags": {"a": 1, "b": 2}}', (("trace", b"1"),), 17)


def test_json_is_merged_and_null_removes():
    edited = parse_edit('{"to": "ada@example.org", "tags": {"a": null, "c": 3}}')(MESSAGE)

    assert msgspec.json.decode(edited.value) == {"to": "ada@example.org", "tags": {"b": 2, "c": 3}}
    assert (edited.key, edited.headers, edited.timestamp) == (b"ada", MESSAGE.headers, 17)


def test_a_function_of_a_file_gets_and_returns_records(tmp_path):
    (tmp_path / "repair.py").write_text(
        "import msgspec\n"
        "def shout(record):\n"
        "    return msgspec.structs.replace(record, value=record.value.upper())\n"
        "def leave(record):\n"
        "    return None\n"
    )

    assert parse_edit(f"{tmp_path}/repair.py:shout")(Record(None, b"a")).value == b"A"
    assert parse_edit(f"{tmp_path}/repair.py:leave")(MESSAGE) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "--edit is not JSON"),
        ("repair", "--edit is wrong; got 'repair'; expected FILE.PY:FUNCTION"),
        ("FOLDER/nosuch.py:shout", "there is no function 'shout' in .*nosuch.py"),
        ("FOLDER/repair.py:nosuch", "there is no function 'nosuch'"),
        ("FOLDER/broken.py:shout", "broken.py cannot be loaded; got division by zero"),
    ],
)
def test_an_edit_that_cannot_be_used_is_refused(tmp_path, text, message):
    (tmp_path / "repair.py").write_text("")
    (tmp_path / "broken.py").write_text("1 / 0")

    with pytest.raises(UsageError, match=message):
        parse_edit(text.replace("FOLDER", str(tmp_path)))


def test_what_an_edit_does_wrong_is_said(tmp_path):
    (tmp_path / "repair.py").write_text(
        "def fail(record):\n    return record.nosuch\ndef text(record):\n    return 'x'\n"
    )

    with pytest.raises(UsageError, match="has failed; got AttributeError"):
        parse_edit(f"{tmp_path}/repair.py:fail")(MESSAGE)
    with pytest.raises(UsageError, match="returned something else; got str; expected a Record"):
        parse_edit(f"{tmp_path}/repair.py:text")(MESSAGE)
    with pytest.raises(UsageError, match="its value is not JSON"):
        parse_edit('{"a": 1}')(Record(None, b"text"))
