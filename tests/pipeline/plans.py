"""Definitions of views that are built and not run: no log is needed for it."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

import headwater as hw
from headwater.config import Settings
from headwater.pipeline.build.prepare import prepare
from headwater.pipeline.definition import definition
from headwater.pipeline.definition.definition import Definition

__all__ = ["Click", "Order", "Seen", "User", "declared", "defined", "refusal"]

SETTINGS = Settings(log="kafka://nowhere:9092", partitions=2)


class User(hw.Row):
    id: int
    name: str
    country: str
    age: int


class Order(hw.Row):
    id: int
    user: int
    cents: int


class Click(hw.Event):
    id: int
    user: int
    text: str
    at: datetime


class Seen(hw.Event):
    id: int
    user: int
    seen: datetime
    n: int


def declared(view: str | Callable[..., Any], key: Any, **options: Any) -> hw.App:
    """An application with two tables, two streams and a view ``v``."""
    app = hw.App("shop")
    app.table("users", User, key="id")
    app.table("orders", Order, key="id")
    app.stream("clicks", Click, key="user", time="at", delay="1 minute")
    app.stream("seens", Seen, key="user", time="seen", delay="1 minute")
    if isinstance(view, str):
        app.sql("v", view, key=key, **options)
    else:
        app.view(key=key, name="v", **options)(view)
    return app


def defined(
    spark: SparkSession, view: str | Callable[..., Any], key: Any, *, partitions: int = 2, **options: Any
) -> Definition:
    """The definition of a view of that application."""
    graph = declared(view, key, **options).graph()
    topics = dict.fromkeys(graph.streams, partitions)
    return prepare(spark, SETTINGS, graph, graph.views["v"], 2, partitions=topics).definition


def refusal(before: Definition, now: Definition) -> str:
    """Why a changed view is refused; empty when it continues."""
    return str(definition.refusal("v", before.parts, now) or "")
