"""Shared: whether Spark's workers see the driver's folder of checkpoints. On machines of their own they must, or state would be lost."""

import socket
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from headwater.config import Settings
from headwater.errors import UsageError

__all__ = ["check_shared", "probe"]

TASKS_MIN = 8
"""A master says nothing of its machines; so many tasks are likely to meet all of a small cluster."""


def check_shared(spark: SparkSession, settings: Settings, folder: Path) -> None:
    """Before the first view starts on a cluster: UsageError when a worker does not share the folder. In ``local…`` there is one machine."""
    if not settings.spark.startswith("local"):
        probe(spark, folder, settings.spark)


def probe(
    spark: SparkSession, folder: Path, master: str, seen_as: Callable[[Path], Path] = lambda path: path
) -> None:
    """Has tasks read what the driver wrote, and reads what they have written. ``seen_as``: where a worker finds a path of ours."""
    context = spark.sparkContext
    tasks = max(TASKS_MIN, 2 * context.defaultParallelism)
    text = uuid.uuid4().hex
    place = folder / f".probe-{text}"
    place.mkdir(parents=True)
    question = place / "driver"
    try:
        question.write_text(text)
        answers = (
            context.parallelize(range(tasks), tasks).map(partial(_answer, place, text, seen_as)).collect()
        )
        wrong = sorted(
            {host for number, host, read in answers if not read or not _wrote(place, number, text)}
        )
    finally:
        for file in place.iterdir():
            file.unlink()
        place.rmdir()
    if wrong:
        raise UsageError(
            f"the workers of {master} do not share the driver's folder of checkpoints",
            got=f"{folder} is another folder on {', '.join(wrong)}",
            expected="one that all machines can read and write under the same path",
            hint='set store = "sqlite:/SHARED/views" (or log = "embedded:/SHARED") to a mounted folder, or spark = "local[*,4]"',
        )


def _answer(place: Path, text: str, seen_as: Callable[[Path], Path], number: int) -> tuple[int, str, bool]:
    """In a worker: whether it reads the driver's text; it leaves the same text for the driver."""
    here = seen_as(place)
    try:
        read = (here / "driver").read_text() == text
        (here / str(number)).write_text(text)
    except OSError:
        read = False
    return number, socket.gethostname(), read


def _wrote(place: Path, number: int, text: str) -> bool:
    try:
        return (place / str(number)).read_text() == text
    except OSError:
        return False
