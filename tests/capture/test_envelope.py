"""The JSON around a row says what Debezium's says, whatever the names and texts are."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.capture import envelope
from headwater.capture.envelope import NULL, Hole, piece, quote
from headwater.capture.source import EventContext

NAMES = st.lists(
    st.text(min_size=1, max_size=8).filter(lambda t: t.isprintable()), min_size=1, max_size=6, unique=True
)


@settings(max_examples=30)
@given(NAMES, st.data())
def test_any_name_and_any_text_come_back(names, data):
    texts = [data.draw(st.text()) for _ in names]
    made = envelope.row(names)([quote(piece(text)) for text in texts])

    assert json.loads(made.encode("latin-1")) == dict(zip(names, texts, strict=True))


def test_a_key_has_its_columns_in_the_order_that_is_given():
    assert envelope.row(["a", "x", "b"], [2, 0])(["1", '"x"', "2"]) == '{"b":2,"a":1}'


def test_a_block_is_constant_but_for_its_holes():
    made = envelope.block(
        {"name": 'a"{b}é', "lsn": Hole("lsn"), "at": Hole("lsn", quoted=True), "none": None}
    )

    assert json.loads(made(lsn="7").encode("latin-1")) == {
        "name": 'a"{b}é',
        "lsn": 7,
        "at": "7",
        "none": None,
    }


def test_a_deleted_row_leaves_a_tombstone():
    gone, tombstone = envelope.delete_events(
        EventContext("t", "{}", envelope.stamp(1_500_000), 7), '{"id":1}', '{"id":1}'
    )

    assert (gone.key, tombstone.key, tombstone.value) == (b'{"id":1}', b'{"id":1}', None)
    assert json.loads(gone.value) == {
        "before": {"id": 1},
        "after": None,
        "source": {},
        "transaction": None,
        "op": "d",
        "ts_ms": 1,
        "ts_us": 1500,
        "ts_ns": 1500000,
    }


def test_a_row_with_another_key_goes_and_comes_again():
    context = EventContext("t", "{}", envelope.stamp(0), 7)
    records = envelope.update_events(context, '{"id":2}', '{"id":1}', '{"id":2}', '{"id":1}')

    assert [(r.key, r.value and json.loads(r.value)["op"]) for r in records] == [
        (b'{"id":1}', "d"),
        (b'{"id":1}', None),
        (b'{"id":2}', "c"),
    ]
    assert len(envelope.update_events(context, '{"id":2}', NULL, '{"id":2}', '{"id":2}')) == 1
