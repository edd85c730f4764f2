"""The archive of Spark's classes: a small application runs once, and its JVM writes them.

`headwater.pipeline.spark.class_archive` says why.
"""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from headwater import testing
from headwater.errors import MachineError
from headwater.pipeline.spark import class_archive, java

__all__ = ["keep"]

RUN_SECONDS_MAX = 300
LINES_SHOWN = 3


def keep() -> Path:
    """The file with the classes; creating it takes some twenty seconds.

    MachineError if that fails; it is not needed to run.
    """
    found = java.require()
    archive = class_archive.find(found)
    if archive is not None:
        return archive
    fresh = class_archive.place(found, 0).with_suffix(f".{os.getpid()}")
    fresh.parent.mkdir(parents=True, exist_ok=True)
    options = f"-XX:ArchiveClassesAtExit={fresh} -Xlog:disable {os.environ.get('SPARK_SUBMIT_OPTS', '')}"
    try:
        ran = subprocess.run(
            [sys.executable, "-m", __name__],
            env=os.environ | {"SPARK_SUBMIT_OPTS": options},
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )
        if ran.returncode or not fresh.exists():
            output = (ran.stderr or ran.stdout).strip().splitlines()[-LINES_SHOWN:]
            raise MachineError("Spark's classes cannot be archived", got=" / ".join(output) or "no file")
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        archive = fresh.replace(class_archive.place(found, fresh.stat().st_size))
    except subprocess.TimeoutExpired as error:
        raise MachineError(
            "Spark's classes cannot be archived", got=f"still running after {RUN_SECONDS_MAX} s"
        ) from error
    finally:
        fresh.unlink(missing_ok=True)
    for old in class_archive.others(found, archive):
        old.unlink(missing_ok=True)
    return archive


def _run() -> None:
    """A typical application: a stream, windows by Spark, state by one of our operators, both published."""
    from pyspark.sql import DataFrame, SparkSession, functions  # noqa: PLC0415

    import headwater as hw  # noqa: PLC0415  only the process that runs needs it

    class Reading(hw.Event):
        sensor: str
        value: float
        at: datetime

    app = hw.App("classes")
    app.stream("readings", Reading, key="sensor", time="at", delay="1 minute")

    @app.view(key=["window", "sensor"])
    def mean(readings: DataFrame) -> DataFrame:
        window = functions.window("at", "1 minute")
        return readings.groupBy(window, "sensor").agg(functions.avg("value").alias("mean"))

    @app.view(key=["sensor"])
    def times(readings: DataFrame) -> DataFrame:
        return hw.count(readings, "sensor")

    with testing.views(app) as tested:
        for sensor in "aba":
            tested.send("readings", Reading(sensor=sensor, value=1.0, at=datetime.now(UTC)))
        if not (tested.rows("mean") and tested.rows("times")):
            sys.exit("its views have no rows")
    spark = SparkSession.getActiveSession()
    jvm = spark.sparkContext._gateway.proc  # noqa: SLF001  PySpark has no other way to wait for its JVM
    spark.stop()
    jvm.stdin.close()
    jvm.wait()


if __name__ == "__main__":
    _run()
