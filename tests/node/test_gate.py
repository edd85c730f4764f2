"""Nothing outside is touched before the plans are checked: by a capture or sink that is new."""

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

import headwater as hw
from headwater.declare.spec import Sink
from headwater.node.gate import Gate


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    (tmp_path / "run").mkdir()
    return Gate(tmp_path)


def told(effect: object) -> None:
    """A function of a sink."""


def sink(path: str, source: str = "revenue", columns: Mapping[str, str] | None = None) -> Sink:
    return Sink("revenue.out", source, hw.sink.Sqlite(path, columns=columns))


def test_what_is_new_waits_until_the_plans_are_checked(gate):
    assert not gate.lets("sink", "revenue.out", sink("a.db"))
    gate.open()
    assert gate.lets("sink", "revenue.out", sink("a.db"))


def test_what_has_begun_here_waits_no_more_and_not_for_a_pipeline_that_cannot_start(gate):
    shop = hw.capture.Postgres("postgresql://a:secret@db/shop", ["t"])
    call = Sink("told", "revenue", hw.sink.Call(told))
    gate.open()
    for name, declared in (("shop", shop), ("told", call), ("revenue.out", sink("a.db"))):
        assert gate.lets("part", name, declared)
    gate.close()
    assert gate.lets("part", "shop", hw.capture.Postgres("postgresql://a:secret@db/shop", ["t"]))
    assert gate.lets("part", "told", Sink("told", "revenue", hw.sink.Call(told)))
    assert gate.lets("part", "revenue.out", sink("a.db"))


@pytest.mark.parametrize("other", [sink("b.db"), sink("a.db", "visits"), sink("a.db", columns={"n": "INT"})])
def test_what_is_declared_in_another_way_is_new(gate, other):
    gate.open()
    assert gate.lets("sink", "revenue.out", sink("a.db"))
    gate.close()
    assert not gate.lets("sink", "revenue.out", other)


def test_a_secret_of_a_declaration_is_not_stored(gate, tmp_path):
    gate.open()
    assert gate.lets("capture", "shop", hw.capture.Postgres("postgresql://a:s3cret@db/shop", ["t"]))
    assert not [file for file in (tmp_path / "run").iterdir() if "s3cret" in file.read_text()]


def test_who_is_asked_to_end_waits_no_longer(gate):
    stop = threading.Event()
    stop.set()
    assert not gate.wait("capture", "shop", hw.capture.Sqlite("shop.db", ["t"]), stop)
