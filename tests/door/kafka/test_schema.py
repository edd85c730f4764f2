"""The layouts of messages.txt against the definitions that Kafka ships in its own client jar."""

import json
import re
import zipfile

import pytest

from headwater.protocol.kafka.layouts import LAST, NEVER, Api, Field, VersionRange, apis
from support.servers import kafka_jars

OWN_TAGS = 10_000
"""Kafka counts its tags up from 0."""


def snake(name: str) -> str:
    name = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name)
    return re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name).lower()


def within(text: str, limit: VersionRange) -> VersionRange:
    found = NEVER if text == "none" else VersionRange.parse(text)
    return VersionRange(max(found.first, limit.first), min(found.last, limit.last))


def flatten(api: Api, fields: list[Field], path: str = "") -> dict[str, tuple]:
    """Every field as path -> (type, array, versions, nullable versions, tag), cut to the versions that we serve.

    Fields with tags of our own are left out: those that do not know them skip them.
    """
    rows = {}
    for field in fields:
        if field.tag is not None and field.tag >= OWN_TAGS:
            continue
        versions = VersionRange(
            max(field.versions.first, api.versions.first), min(field.versions.last, api.versions.last)
        )
        rows[path + field.name] = (
            field.type,
            field.array,
            versions,
            nullable_in(field.nullable, versions),
            field.tag,
        )
        rows |= flatten(api, field.fields, f"{path}{field.name}.")
    return rows


def nullable_in(nullable: VersionRange, versions: VersionRange) -> list[int]:
    return [v for v in range(versions.first, min(versions.last, LAST) + 1) if v in nullable]


def flatten_kafka(
    api: Api, definition: dict, fields: list[dict], path: str = "", parent: VersionRange | None = None
) -> dict[str, tuple]:
    common = {struct["name"]: struct["fields"] for struct in definition.get("commonStructs", [])}
    rows = {}
    for field in fields:
        versions = within(field["versions"], parent or api.versions)
        if versions.first > versions.last:
            continue
        array = field["type"].startswith("[]")
        kind = field["type"].removeprefix("[]")
        below = field.get("fields") or common.get(kind)
        nullable = nullable_in(within(field.get("nullableVersions", "none"), versions), versions)
        rows[path + snake(field["name"])] = (
            "struct" if below else kind,
            array,
            versions,
            nullable,
            field.get("tag"),
        )
        if below:
            rows |= flatten_kafka(api, definition, below, f"{path}{snake(field['name'])}.", versions)
    return rows


@pytest.fixture(scope="module")
def kafka_definitions() -> zipfile.ZipFile:
    jar = next(kafka_jars().glob("kafka-clients-*.jar"))
    with zipfile.ZipFile(jar) as archive:
        yield archive


def definition_of(archive: zipfile.ZipFile, name: str) -> dict:
    text = archive.read(f"common/message/{name}.json").decode()
    return json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))


@pytest.mark.parametrize("name", sorted(apis()))
@pytest.mark.parametrize("side", ["Request", "Response"])
def test_layouts_agree_with_kafkas_own_definitions(kafka_definitions, name, side):
    api = apis()[name]
    definition = definition_of(kafka_definitions, name + side)
    known = VersionRange.parse(definition["validVersions"])
    shared = VersionRange(api.versions.first, min(api.versions.last, known.last))
    ours = Api(api.name, api.key, shared, api.flexible, api.request, api.response)

    expected = flatten_kafka(ours, definition, definition["fields"])
    found = {
        path: row
        for path, row in flatten(ours, getattr(ours, side.lower())).items()
        if row[2].first <= row[2].last
    }

    assert definition["apiKey"] == api.key
    flexible = definition["flexibleVersions"]
    assert (NEVER if flexible == "none" else VersionRange.parse(flexible)).first == api.flexible.first
    assert shape(found) == shape(expected)


def shape(rows: dict[str, tuple]) -> dict[str, tuple]:
    """A field inside a struct may be declared wider than the struct; only the versions of both count."""
    shaped = {}
    for path, (kind, array, versions, nullable, tag) in rows.items():
        parent = shaped.get(path.rpartition(".")[0])
        if parent is not None:
            limit = VersionRange(max(versions.first, parent[2].first), min(versions.last, parent[2].last))
        else:
            limit = versions
        shaped[path] = (kind, array, limit, [v for v in nullable if v in limit], tag)
    return shaped
