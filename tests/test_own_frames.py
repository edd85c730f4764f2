"""A person's own lines in a traceback: those of Spark, Python and Headwater are left out."""

import json

from headwater import own_frames
from support.traceback_text import PRINTED


def test_a_printed_traceback_is_cut_to_the_own_lines_the_innermost_first():
    assert own_frames.shown(own_frames.of_text(PRINTED)) == (
        'texts.py, line 4, in strip: raise ValueError(f"no number: {text}"), '
        "called from app.py, line 31, in clean: return int(strip(text))"
    )


def test_the_lines_of_python_itself_are_not_shown():
    try:
        json.loads("{")
    except ValueError as error:
        (frame,) = own_frames.of_error(error)
    assert str(frame).startswith("test_own_frames.py, line ")
    assert frame.text == 'json.loads("{")'


def test_a_deep_traceback_shows_the_innermost_frames():
    frames = [own_frames.Frame(f"/a/f{n}.py", n, f"g{n}") for n in range(9)]
    shown = own_frames.shown(frames)
    assert shown == "f8.py, line 8, in g8, called from f7.py, line 7, in g7, called from f6.py, line 6, in g6"
