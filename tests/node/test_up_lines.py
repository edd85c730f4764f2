"""The lines of ``headwater up``: one that cannot be printed ends nothing."""

import io

import pytest

from headwater.node import up


class Full(io.RawIOBase):
    """A file on a disk without room."""

    def writable(self):
        return True

    def write(self, _):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("raw", [Full(), io.BytesIO()], ids=["full", "ascii"])
def test_a_line_that_cannot_be_printed_ends_nothing(monkeypatch, raw):
    out = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    monkeypatch.setattr("sys.stdout", out)
    up._print("view revenue is failing: Zürich, \ud83d")
    if isinstance(raw, io.BytesIO):
        assert raw.getvalue() == b"view revenue is failing: Z?rich, ?\n"


def test_a_line_into_a_closed_file_ends_nothing(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO())
    out.close()
    monkeypatch.setattr("sys.stdout", out)
    up._print("view revenue is failing")
