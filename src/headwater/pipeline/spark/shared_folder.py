"""Shared folder: checks that Spark's workers can read and write the driver's folder of checkpoints.

On other machines they must, or state would be lost.
"""

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
"""A master does not list its machines; this many tasks probably reach all of a small cluster."""


def check_shared(spark: SparkSession, settings: Settings, folder: Path) -> None:
    """Raises UsageError if a worker of a cluster does not share the folder.

    ``local…`` has only one machine.
    """
    if settings.on_cluster:
        probe(spark, folder, settings.spark)


def probe(
    spark: SparkSession, folder: Path, master: str, seen_as: Callable[[Path], Path] = lambda path: path
) -> None:
    """Lets tasks read a file of the driver and write into each other's folders, and reads their files.

    ``seen_as``: a path of the driver as a worker sees it.
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
            expected="a folder that all machines and users can read and write under the same path",
            hint='set store = "sqlite:/SHARED/views" (or log = "embedded:/SHARED") to a mounted folder '
            'whose group has all these users (chmod 2770, workers with umask 002), or spark = "local[*,4]"',
        )


def _answer(place: Path, text: str, seen_as: Callable[[Path], Path], number: int) -> tuple[int, str, bool]:
    """In a worker: whether it reads the driver's text; writes the same text for the driver."""
    here = seen_as(place)
    try:
        read = (here / "driver").read_text() == text
        (here / str(number)).mkdir(exist_ok=True)
        (here / str(number) / "answer").write_text(text)
    except OSError:
        read = False
    return number, _who(), read


def _join(place: Path, tasks: int, seen_as: Callable[[Path], Path], number: int) -> tuple[str, bool]:
    """In a worker: whether it may write into the folders of the others."""
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
