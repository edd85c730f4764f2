"""The pipeline in a session of its own, Python, JVM, workers and executors, as a supervisor would keep it; and ways to end it.

A start of Spark takes ten seconds and more. A **standby** has done it already, has touched nothing of the view, and waits for its turn.
"""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from support.ordershop import Shop
from support.servers import BrokerProcess, KafkaProcess, wait_until

__all__ = ["Driver", "driving", "own_shop", "spark_home"]

DRIVER = """
    import sys
    import headwater as hw
    from headwater.cli.main import main
    from headwater.config import load
    from headwater.pipeline.spark import session

    session.start(load(), import_folder=hw.App.load(sys.argv[1]).folder)
    if sys.stdin.readline():
        sys.argv = ["headwater", "run", sys.argv[1]]
        main()
"""
JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xlog:disable -Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
"""A driver that lives for seconds gains nothing from the better compiler, nor from compiling its queries.

With one compiler alone a JVM has room for a fifth of the code: one that runs all tests throws code away and compiles it again.
"""
END_S = 120
STARTS_MAX = 20
"""A driver that ends again and again will not get better: the test is over."""


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    command: str


class Driver:
    """Runs an application file until it is killed, and again when asked to. ``crash_file`` is where a point can be named.

    ``masters`` are taken in turn, one for each start.
    """

    def __init__(
        self, shop: Shop, folder: Path, app: str, masters: tuple[str, ...] = ("local[*,4]",), **environ: str
    ) -> None:
        self.app = folder / "app.py"
        self.app.write_text(textwrap.dedent(app))
        self.log = folder / "driver.log"
        self.crash_file = folder / "crash"
        self.starts = 0
        self._masters = masters
        self._launched = 0
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
            "JAVA_TOOL_OPTIONS": JAVA,
            **shop.settings.environ(),
            "CRASH_FILE": str(self.crash_file),
            **environ,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self._standby: subprocess.Popen[bytes] | None = None

    def keep(self) -> None:
        """Starts it, or starts it again when it has ended."""
        if self.process is None or self.process.poll() is not None:
            if self.process is not None:
                _end(self.process)
            assert self.starts < STARTS_MAX, f"a driver has ended {self.starts} times: {self.said()}"
            self.process, self._standby = self._standby or self._launch(), None
            assert self.process.stdin is not None
            self.process.stdin.write(b"go\n")
            self.process.stdin.flush()
            self.starts += 1

    def prepare(self) -> None:
        """Starts the next one as a standby."""
        if self._standby is None:
            self._standby = self._launch()

    def kill(self) -> None:
        """Ends everything of it at once."""
        assert self.process is not None
        _end(self.process)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to all processes of it."""
        for each in self._processes():
            with _unless_gone():
                os.kill(each.pid, number)

    def end(self) -> None:
        """Ends every process, the standby too."""
        for process in (self.process, self._standby):
            if process is not None:
                _end(process)

    def said(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text().strip().splitlines()
        return lines[-1] if lines else ""

    def java(self) -> list[int]:
        """The JVM of Spark's driver."""
        return [each.pid for each in self._processes() if "spark.deploy.SparkSubmit" in each.command]

    def executors(self) -> list[int]:
        """The JVMs of Spark's executors; none but in a cluster."""
        return [each.pid for each in self._processes() if "CoarseGrainedExecutorBackend" in each.command]

    def workers(self) -> list[int]:
        """Spark's Python workers: children of a daemon that looks as they do."""
        daemons = {each.pid: each for each in self._processes() if "pyspark.daemon" in each.command}
        return [each.pid for each in daemons.values() if each.parent in daemons]

    def _processes(self) -> list[Process]:
        return [] if self.process is None else _session(self.process.pid)

    def _launch(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", textwrap.dedent(DRIVER), str(self.app)]
        master = {"HEADWATER_SPARK": self._masters[self._launched % len(self._masters)]}
        self._launched += 1
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment | master,
                start_new_session=True,
            )


def _session(leader: int) -> list[Process]:
    """All living processes of a session. A process group would not do: the daemon of the workers leaves it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, _, session, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(session) == leader and state != "Z":
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append(Process(int(folder.name), int(parent), command))
        except OSError:  # it has ended meanwhile
            continue
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    def gone() -> bool:
        for each in _session(process.pid):
            with _unless_gone():
                os.kill(each.pid, signal.SIGKILL)
        return process.poll() is not None and not _session(process.pid)

    wait_until(gone, END_S, "the end of a driver's processes")
    assert process.stdin is not None
    with _unless_gone():
        process.stdin.close()


@contextmanager
def _unless_gone() -> Iterator[None]:
    try:
        yield
    except (ProcessLookupError, BrokenPipeError):
        return


def spark_home(folder: Path) -> Path:
    """A Spark installation of its own, made of links: executors keep their logs below it."""
    home = folder / "spark-home"
    home.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        (home / each.name).symlink_to(each)
    return home


def own_shop(broker: BrokerProcess | KafkaProcess, folder: Path) -> Shop:
    """A shop on a broker of its own, so its topics need no prefix."""
    shop = Shop(broker.bootstrap, folder / "pipeline")
    shop.prefix = ""
    return shop


@contextmanager
def driving(
    shop: Shop, folder: Path, app: str, masters: tuple[str, ...] = ("local[*,4]",), **environ: str
) -> Iterator[Driver]:
    """A driver that is gone in the end, with all that it has started."""
    driver = Driver(shop, folder, app, masters, **environ)
    try:
        yield driver
    finally:
        driver.end()
