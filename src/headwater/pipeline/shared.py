"""Shared: whether Spark's workers see the driver's folder of checkpoints and may write there. On machines of their own they must, or state would be lost."""

import os
import shutil
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
    if settings.on_cluster:
        probe(spark, folder, settings.spark)


def probe(
    spark: SparkSession, folder: Path, master: str, seen_as: Callable[[Path], Path] = lambda path: path
) -> None:
    """Has tasks read what the driver wrote, write into each other's folders, and reads what they have written.

    ``seen_as``: where a worker finds a path of ours.
    """
    context = spark.sparkContext
    tasks = max(TASKS_MIN, 2 * context.defaultParallelism)
    text = uuid.uuid4().hex
    place = folder / f".probe-{text}"
    place.mkdir(parents=True)
    question = place / "driver"
    try:
        question.write_text(text)
        numbers = context.parallelize(range(tasks), tasks)
        answers = numbers.map(partial(_answer, place, text, seen_as)).collect()
        wrong = {who for number, who, read in answers if not read or not _wrote(place, number, text)}
        if not wrong:
            joined = numbers.map(partial(_join, place, tasks, seen_as)).collect()
            wrong = {who for who, wrote in joined if not wrote}
    finally:
        shutil.rmtree(place)
    if wrong:
        raise UsageError(
            f"the workers of {master} do not share the driver's folder of checkpoints",
            got=f"{folder} is another folder, or may not be written, for {', '.join(sorted(wrong))}",
            expected="one that all machines and users can read and write under the same path",
            hint='set store = "sqlite:/SHARED/views" (or log = "embedded:/SHARED") to a mounted folder of a group that all are in '
            '(chmod 2770, workers with umask 002), or spark = "local[*,4]"',
        )


def _answer(place: Path, text: str, seen_as: Callable[[Path], Path], number: int) -> tuple[int, str, bool]:
    """In a worker: whether it reads the driver's text; it leaves the same text for the driver."""
    here = seen_as(place)
    try:
        read = (here / "driver").read_text() == text
        (here / str(number)).mkdir(exist_ok=True)
        (here / str(number) / "answer").write_text(text)
    except OSError:
        read = False
    return number, _who(), read


def _join(place: Path, tasks: int, seen_as: Callable[[Path], Path], number: int) -> tuple[str, bool]:
    """In a worker: whether it may write into the folders that the others have made."""
    here = seen_as(place)
    try:
        for other in range(tasks):
            (here / str(other) / f"of-{number}").touch()
    except OSError:
        return _who(), False
    return _who(), True


def _who() -> str:
    return f"user {os.getuid()} on {socket.gethostname()}"


def _wrote(place: Path, number: int, text: str) -> bool:
    try:
        return (place / str(number) / "answer").read_text() == text
    except OSError:
        return False
