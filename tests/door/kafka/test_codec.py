"""What is encoded decodes to the same message, and damaged bytes are refused, never misread or looped on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import ProtocolError
from headwater.protocol.kafka.codec import Layout, layout
from headwater.protocol.kafka.layouts import Field, apis

SIZES = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
EVERY = sorted((name, side) for name in apis() for side in ("request", "response"))


def value_of(lay: Layout, field: Field, version: int, path: str) -> st.SearchStrategy:
    if field.type in SIZES:
        half = 2 ** (SIZES[field.type] - 1)
        base = st.integers(-half, half - 1)
    elif field.type == "struct":
        base = message_of(lay, field.fields, version, path)
    else:
        base = {
            "bool": st.booleans(),
            "uint16": st.integers(0, 65535),
            "string": st.text(max_size=20),
            "uuid": st.uuids(),
            "bytes": st.binary(max_size=20),
            "records": st.binary(max_size=20),
        }[field.type]
    if field.array:
        base = st.lists(base, max_size=3)
    return st.none() | base if version in field.nullable else base


def message_of(lay: Layout, fields: list[Field], version: int, path: str = "") -> st.SearchStrategy:
    present = [f for f in fields if version in f.versions]
    values = {f.name: value_of(lay, f, version, f"{path}.{f.name}".lstrip(".")) for f in present}
    return st.builds(lay.struct(path), **values)


@pytest.mark.parametrize(("name", "side"), EVERY)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_what_is_encoded_decodes_to_the_same_message(name, side, data):
    lay = layout(name, side)
    version = data.draw(st.integers(lay.api.versions.first, lay.api.versions.last))
    message = data.draw(message_of(lay, lay.fields, version))

    encoded = b"".join(lay.encode(version, message))

    assert b"".join(lay.encode(version, lay.decode(version, encoded))) == encoded


@pytest.mark.parametrize(("name", "side"), EVERY)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_refused_or_decode_to_something_else(name, side, data):
    lay = layout(name, side)
    version = data.draw(st.integers(lay.api.versions.first, lay.api.versions.last))
    encoded = bytearray(b"".join(lay.encode(version, data.draw(message_of(lay, lay.fields, version)))))
    for _ in range(data.draw(st.integers(1, 3))):
        if encoded:
            encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = encoded[: data.draw(st.integers(0, len(encoded)))]

    try:
        lay.decode(version, memoryview(cut))
    except ProtocolError:
        return


def test_a_giant_array_is_refused_before_anything_is_allocated():
    lay = layout("Metadata", "request")

    with pytest.raises(ProtocolError, match="longer than its request"):
        lay.decode(1, b"\x7f\xff\xff\xff")
