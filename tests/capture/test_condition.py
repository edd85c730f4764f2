"""A condition of a control topic chooses rows of its table, and can say nothing else to the database."""

import pytest

from headwater.capture.reread.condition import Condition
from headwater.errors import CaptureError


def sql(text: str) -> str:
    return Condition(text).sql(lambda name: f'"{name}"', lambda value: "'" + value.replace("'", "''") + "'")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("id <= 1000", '"id" <= 1000'),
        ("day >= current_date", '"day" >= CURRENT_DATE'),
        ("name = 'O''Brien; --'", "\"name\" = 'O''Brien; --'"),
        ("kind in ('a', 'b') and not n = -1.5", "\"kind\" IN ( 'a' , 'b' ) AND NOT \"n\" = -1.5"),
        (
            "(a = 1 or b is not null) and c not like 'x%'",
            '( "a" = 1 OR "b" IS NOT NULL ) AND "c" NOT LIKE \'x%\'',
        ),
        ('"odd ""name" between 1 and 2', '"odd "name" BETWEEN 1 AND 2'),
        ("`key` = other", '"key" = "other"'),
        ("true", "TRUE"),
    ],
)
def test_comparisons_are_written_again_for_the_database(text, written):
    assert sql(text) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "(",
        "id",
        "id = ",
        "id = 1 2",
        "no such column = 1",
        "true) UNION ALL SELECT id, word, 0 FROM secret WHERE (true",
        "id IN (SELECT id FROM secret)",
        "id = (SELECT 1)",
        "pg_drop_replication_slot('x') IS NULL",
        "id = pg_sleep(10)",
        "id = 1; DROP TABLE t",
        "id = 1 -- rest",
        "id = 1 /* rest */",
        "id = E'\\'",
        "id = $1",
        "id = @@version",
        "id = 1::text",
        "id = 0x10",
        "'a' = 'a'",
        "other.id = 1",
        "(" * 60 + "id = 1" + ")" * 60,
        "id = 1 OR " * 2_000 + "id = 1",
    ],
)
def test_everything_else_is_refused(text):
    with pytest.raises(CaptureError, match="the condition"):
        Condition(text)
