"""Session: one Spark for the process, with settings whose effect was measured.

The JVM writes to ``logs/spark.log`` and ``logs/spark.out`` in the data folder, never to the terminal. The
second one has what Spark does not log: crashes, and what functions of views print.
"""

import logging
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from headwater.child_log import ChildLog
from headwater.clock import SystemClock
from headwater.config import Settings
from headwater.errors import MachineError, UsageError
from headwater.formats import STATE_COPY
from headwater.pipeline.spark import class_archive, class_handles, code_zip, jars, java, java_classes

__all__ = ["copies", "data", "logs", "master", "start"]

LOG4J = Path(__file__).with_name("log4j2.properties")
STREAMING = "org.apache.spark.sql.execution.streaming"
CHECKPOINT_FILES = f"{STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"

FIXED = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.scheduler.mode": "FAIR",
    # Closing a window changes no row of a view, so it can wait for the next records.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # Adaptive execution runs stages in other threads, which do not pass on the local property of a batch.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.streaming.stopTimeout": "60s",
    "spark.sql.streaming.stateStore.providerClass": f"{STREAMING}.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # The commit of a batch names the files of its state. By format 1 a version is a file name, and a snapshot
    # of an attempt that was given up, uploaded late, would take the place of the one that counts. A query
    # keeps the format with which it has begun.
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # Renames like the default, but forks no helper process for each file: a third to a half off each batch.
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
    # One consumer for each partition of each input of each view stays open between batches.
    "spark.kafka.consumer.cache.capacity": "256",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Spark would send the Python line of every column to the JVM: most of the calls for a plan.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Its first level, for a few keys, is not faster for them, and slows down many.
    "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
    # Over TCP the first rows of a task reach its Python worker 40 ms late: Nagle's algorithm waits for
    # delayed acknowledgements.
    "spark.python.unix.domain.socket.enabled": "true",
}
ON_ONE_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Rows between tasks stay in memory for their short life, and are not damaged on the way.
    "spark.shuffle.compress": "false",
    "spark.shuffle.checksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableQueryLevelRollbackOnMismatch": "false",
}
ON_CLUSTER = {
    # Driver and executors are different users, who share the folder of checkpoints through their group.
    "spark.hadoop.fs.permissions.umask-mode": "002",
    "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
}
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
ADDED = {"spark.jars": ",", JAVA_OPTIONS: " ", "spark.executor.extraJavaOptions": " "}
"""Options to which a user's are appended, each with its separator."""
JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
"""Variables with options that every JVM uses."""
COLLECTOR = "-XX:+UseParallelGC"
"""Batches make many short-lived objects in a small heap.

A stateless query takes a seventh less CPU of the JVM than with G1; one with a million keys takes the same.
"""
WORKER_PYTHON = "spark.pyspark.python"
GROUP_RIGHTS = 0o070
ROTATE_S = 1.0


def data(settings: Settings) -> Path:
    """The folder of checkpoints and logs, as an absolute path: Spark has another working directory."""
    return settings.data.absolute()


def copies(settings: Settings) -> Path:
    """The folder of this machine's copies of state.

    It has another name after a restart of the machine, since copies are not synced, and for another format.
    On a cluster it is relative to the scratch folder of each executor.
    """
    if settings.on_cluster:
        return Path(f"headwater-copies-{STATE_COPY.newest}")
    boot = Path("/proc/sys/kernel/random/boot_id")
    folder = data(settings) / "copies"
    booted = boot.read_text().strip() if boot.exists() else "boot"
    current = f"{booted}-{STATE_COPY.newest}"
    for other in folder.glob("*"):
        if other.name != current:
            shutil.rmtree(other, ignore_errors=True)
    return folder / current


def master(settings: Settings, slots: int) -> str:
    """The Spark master, with as many slots as the graph needs, if we may choose them.

    0: as many as it offers.
    """
    if not slots or not settings.spark.startswith("local"):
        return settings.spark
    offered, _, tries = settings.spark.removeprefix("local").strip("[]").partition(",")
    if offered == "*":
        return f"local[{slots + (os.cpu_count() or 1)},{tries or 1}]"
    if int(offered or 1) < slots:
        raise UsageError(
            "setting 'spark' has too few slots for the real-time views",
            got=repr(settings.spark),
            expected=f"at least {slots}",
            hint="write local[*,4]: the embedded Spark then starts with as many as it needs",
        )
    return settings.spark


def logs(folder: Path, name: str = "spark") -> tuple[Path, Path]:
    """The log of a session, and what its JVM and their Python workers print, in a folder of data."""
    return folder / "logs" / f"{name}.log", folder / "logs" / f"{name}.out"


def start(
    settings: Settings,
    *,
    slots: int = 0,
    import_folder: Path | None = None,
    folder: Path | None = None,
    name: str = "spark",
) -> SparkSession:
    """The process's Spark session, started at the first call.

    Its files are in ``folder``, or in the data folder; its logs, below it, have a ``name``, by which those of
    two processes are distinguished.
    Raises MachineError without Java, or if Spark does not start.
    """
    running = SparkSession.getActiveSession() or SparkSession._instantiatedSession  # noqa: SLF001
    if running is not None:
        return running
    found_java = java.require()
    folder = folder or data(settings)
    log, out = logs(folder, name)
    log.parent.mkdir(parents=True, exist_ok=True)
    _environment(settings, import_folder)
    # The runner reports a query that fails or stops; these loggers would add stack traces.
    for logger in ("py4j.clientserver", "SQLQueryContextLogger"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    conf = _conf(settings, folder, log, master(settings, slots), class_archive.options(found_java))
    printed = ChildLog(out)
    try:
        with printed.open("Spark", SystemClock().now_ms()) as file:
            gateway = launch_gateway(conf, popen_kwargs={"stdout": file, "stderr": file})
    except PySparkRuntimeError as error:
        last = (printed.tail() or ["no message"])[-1]
        raise MachineError("Spark does not start", got=last, hint=f"see {out}") from error
    rotate = threading.Thread(target=_rotate, args=(printed, gateway.proc), name="spark.out", daemon=True)
    rotate.start()
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001
    class_handles.prepare(gateway.jvm)
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    if settings.on_cluster:
        code = "code.zip" if name == "spark" else f"code-{name}.zip"
        spark.sparkContext.addPyFile(str(code_zip.pack(folder / code, import_folder)))
    return spark


def _rotate(printed: ChildLog, java_process: subprocess.Popen[bytes], pause_s: float = ROTATE_S) -> None:
    """Keeps what a JVM prints within its bound, until the JVM has ended."""
    pause = threading.Event()
    while java_process.poll() is None:
        printed.rotate()
        pause.wait(pause_s)


def _conf(
    settings: Settings, folder: Path, log: Path, spark_master: str, java_options: list[str]
) -> SparkConf:
    conf = SparkConf(loadDefaults=False)
    conf.setAppName("headwater").setMaster(spark_master)
    for key, value in FIXED.items():
        conf.set(key, value)
    options = [
        f"-Dlog4j2.configurationFile={LOG4J.as_uri()}",
        f"-Dheadwater.log={log}",
        f"-XX:ErrorFile={log.with_suffix('.crash')}",  # one, which the next crash replaces
        "-Duser.timezone=UTC",
        *([] if _names_collector(settings) else [COLLECTOR]),
        *java_options,
    ]
    conf.set(JAVA_OPTIONS, " ".join(f'"{option}"' for option in options))  # a folder may have a space
    conf.set("spark.driver.memory", settings.spark_memory)
    conf.set("spark.jars", ",".join(str(jar) for jar in [*jars.ensure(), java_classes.ensure()]))
    conf.set("spark.sql.shuffle.partitions", str(settings.first_shards))
    conf.set("spark.sql.warehouse.dir", str(folder / "warehouse"))
    for key, value in (ON_CLUSTER if settings.on_cluster else ON_ONE_MACHINE).items():
        conf.set(key, value)
    for key, value in settings.spark_options.items():
        ours = conf.get(key) if key in ADDED else None
        conf.set(key, f"{ours}{ADDED[key]}{value}" if ours else value)
    return conf


def _names_collector(settings: Settings) -> bool:
    """Whether the options name a collector: a JVM with two of them does not start."""
    options = [
        settings.spark_options.get(JAVA_OPTIONS, ""),
        *(os.environ.get(name, "") for name in JAVA_VARIABLES),
    ]
    return any(
        option.startswith("-XX:+Use") and option.endswith("GC") for option in " ".join(options).split()
    )


def _environment(settings: Settings, import_folder: Path | None) -> None:
    """Sets the Python of workers, this or a configured one, and the folder of the application's modules."""
    os.environ["PYSPARK_PYTHON"] = settings.spark_options.get(WORKER_PYTHON, sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if settings.on_cluster:
        os.umask(os.umask(0) & ~GROUP_RIGHTS)  # before the JVM starts: both write into the shared folder
    if import_folder is not None:
        before = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(import_folder), before]))
