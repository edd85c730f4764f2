"""The pipeline in a process group of its own, Python, JVM and workers, as a supervisor would keep it; and ways to end it."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ordershop import Shop
from servers import BrokerProcess

__all__ = ["Driver", "driving", "own_shop"]

DRIVER = """
    import sys
    import headwater as hw
    from headwater.config import load
    from headwater.pipeline.runner import Runner

    runner = Runner(hw.App.load(sys.argv[1]), load())
    runner.start()
    runner.wait()
"""


class Driver:
    """Runs an application file until it is killed, and again when asked to. ``crash_file`` is where a point can be named."""

    def __init__(self, shop: Shop, folder: Path, app: str) -> None:
        self.app = folder / "app.py"
        self.app.write_text(textwrap.dedent(app))
        self.log = folder / "driver.log"
        self.crash_file = folder / "crash"
        self.starts = 0
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
            **shop.settings.environ(),
            "HEADWATER_SPARK": "local[*,4]",
            "CRASH_FILE": str(self.crash_file),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def keep(self) -> None:
        """Starts it, or starts it again when it has ended."""
        if self.process is None or self.process.poll() is not None:
            if self.process is not None:
                self._end_group()
            command = [sys.executable, "-c", textwrap.dedent(DRIVER), str(self.app)]
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    command, stdout=log, stderr=log, env=self._environment, start_new_session=True
                )
            self.starts += 1

    def kill(self) -> None:
        """Ends everything of it at once."""
        assert self.process is not None
        self._end_group()
        self.process.wait()

    def said(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text().strip().splitlines()
        return lines[-1] if lines else ""

    def workers(self) -> list[int]:
        """Spark's Python workers."""
        assert self.process is not None
        found = subprocess.run(
            ["pgrep", "-g", str(self.process.pid), "-f", "pyspark.daemon"],
            capture_output=True,
            text=True,
            check=False,
        )
        return [int(pid) for pid in found.stdout.split()][1:]  # the first one is their parent

    def _end_group(self) -> None:
        assert self.process is not None
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def own_shop(broker: BrokerProcess, folder: Path) -> Shop:
    """A shop on a broker that nobody else uses, so its topics need no prefix."""
    shop = Shop(broker.bootstrap, folder / "pipeline")
    shop.prefix = ""
    return shop


@contextmanager
def driving(shop: Shop, folder: Path, app: str) -> Iterator[Driver]:
    """A driver that is gone in the end, with all that it has started."""
    driver = Driver(shop, folder, app)
    try:
        yield driver
    finally:
        if driver.process is not None:
            driver.kill()
