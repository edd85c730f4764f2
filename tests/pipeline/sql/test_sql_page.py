"""docs/sql.md: its examples are planned, its list is that of the code that refuses, and each example in it is refused for just that reason."""

import ast
import re
from datetime import datetime
from functools import cache
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.config import Settings
from headwater.declare.refusal import REFUSALS
from headwater.pipeline.build import prepare
from pipeline.sqlpage import PAGE, page

PIPELINE = Path(prepare.__file__).parents[1]
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text().partition("## What is refused")[0], re.MULTILINE | re.DOTALL
)
INPUTS = ("clicks", "customers", "lands", "orders", "rates")
WITHOUT_ERRORS = (
    "build/hidden_columns",
    "build/last_step",
    "build/plan_edits",
    "operator/weights",
    "sql/as_of",
    "sql/rewrite",
)
"""Modules that refuse nothing but by what is on the page."""


@cache
def code(blocks: int):
    return compile("\n".join(BLOCKS[:blocks]), str(PAGE), "exec")


def declared(blocks: int) -> hw.App:
    names = {"hw": hw, "datetime": datetime}
    exec(code(blocks), names)  # noqa: S102
    return names["app"]


def prepared(spark, app: hw.App, view: str) -> None:
    graph = app.graph()
    prepare.prepare(spark, Settings(), graph, graph.views[view], 2, partitions=dict.fromkeys(INPUTS, 2))


def test_the_list_of_what_is_refused_is_the_one_of_the_code():
    assert PAGE.read_text() == page(PAGE.read_text()), "make sql-page"


@pytest.mark.parametrize("name", WITHOUT_ERRORS)
def test_what_a_module_refuses_is_on_the_page(name):
    tree = ast.parse((PIPELINE / f"{name}.py").read_text())
    made = [
        each.func.id
        for each in ast.walk(tree)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
    ]
    assert "UsageError" not in made


@pytest.mark.spark
def test_the_examples_of_what_a_view_may_use_are_planned(spark):
    app = declared(len(BLOCKS))
    for view in app.graph().views:
        prepared(spark, app, view)


@pytest.mark.spark
@pytest.mark.parametrize("refused", REFUSALS, ids=lambda refused: refused.shown(refused.what)[:60])
def test_each_example_is_refused_for_just_that_reason(spark, refused):
    app = declared(1)
    options = dict(refused.options) | {"key": list(refused.key)}
    if refused.example.startswith("SELECT"):
        app.sql("v", refused.example, **options)
    else:
        used = [name for name in INPUTS if re.search(rf"\b{name}\b", refused.example)]
        function = eval(f"lambda {', '.join(used)}: {refused.example}", {"hw": hw, "F": F})  # noqa: S307
        app.view(name="v", **options)(function)
    with pytest.raises(hw.UsageError) as raised:
        prepared(spark, app, "v")
    parts = re.split(r"\{\w+\}", refused.what)
    assert re.fullmatch(".+".join(map(re.escape, parts)), raised.value.what), raised.value
    assert re.fullmatch(
        ".*".join(
            map(re.escape, re.split(r"\{\w+\}", refused.instead.replace("{{", "{").replace("}}", "}")))
        ),
        raised.value.hint,
    )
