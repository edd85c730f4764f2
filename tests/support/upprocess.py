"""``headwater up`` as a user runs it: an application file, its lines, its report, its processes."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from headwater.client.client import producer
from headwater.health.report import read
from pipeline.driver import JAVA
from support.servers import free_port, wait_until

__all__ = ["Parts", "UpProcess", "upping"]

END_S = 120
Parts = dict[str, dict[str, Any]]
"""A report: for each part, by kind and name, what is said of it."""


class UpProcess:
    """An application under ``headwater up``. Another version of it can be started on the same data folder."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self.folder, self.data, self.app = folder, folder / "data", folder / "app.py"
        self.out = folder / "up.txt"
        settings = {
            "HEADWATER_LOG": f"embedded:{self.data}",
            "HEADWATER_BROKER_PORT": str(free_port()),
            "HEADWATER_CONSOLE_PORT": str(free_port()),
            "HEADWATER_SPARK_MEMORY": "1g",
            "HEADWATER_TRIGGER_MS": "50",
            "JAVA_TOOL_OPTIONS": JAVA,
        }
        plain = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
        self.environ = plain | settings | environ
        self.process: subprocess.Popen[bytes] | None = None

    def write(self, app: str) -> None:
        self.app.write_text(textwrap.dedent(app))

    def start(self) -> None:
        with self.out.open("ab") as out:
            command = [sys.executable, "-m", "headwater", "up", str(self.app)]
            self.process = subprocess.Popen(
                command, env=self.environ, stdout=out, stderr=out, cwd=self.folder
            )

    def end(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(END_S) == 0, self.said()

    def kill(self) -> None:
        """Kills it, and waits until the processes that it has started have ended by themselves."""
        assert self.process is not None
        children = self.processes().values()
        self.process.kill()
        self.process.wait(END_S)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), END_S, "their end")

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.environ['HEADWATER_BROKER_PORT']}"

    def until(self, condition: Callable[[], object], what: str, seconds: float = 60) -> None:
        def holds() -> object:
            assert self.process is not None
            assert self.process.poll() is None, f"headwater up has ended: {self.said()}"
            return condition()

        try:
            wait_until(holds, seconds, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self.parts()}; {self.said()}") from None

    # ---- what it says --------------------------------------------------------------------------------------

    def said(self) -> str:
        return self.out.read_text() if self.out.exists() else ""

    def says(self, line: str, since: int = 0) -> str:
        """The first line that it prints and that begins so; ``since`` is a length of what it has said."""
        found: list[str] = []

        def is_said() -> bool:
            found[:] = re.findall(f"^{line}.*", self.said()[since:], re.MULTILINE)
            return bool(found)

        self.until(is_said, f"the line {line}")
        return found[0]

    def command(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "headwater", *words]
        return subprocess.run(
            argv,
            env=self.environ | environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=END_S,
            cwd=self.folder,
        )

    def parts(self) -> Parts:
        """What a report of its folder says, without a process for the command."""
        return {_title(part): part for part in json.loads(msgspec.json.encode(read(self.data).parts))}

    def report(self) -> Parts:
        """All of ``headwater status --json``, as somebody types it."""
        shown = json.loads(self.command("status", "--json").stdout)
        return {_title(part): part for part in shown["parts"]}

    def states(self) -> dict[str, str]:
        return {name: part["state"] for name, part in self.parts().items()}

    def get(self, path: str) -> tuple[int, Any]:
        url = f"http://127.0.0.1:{self.environ['HEADWATER_CONSOLE_PORT']}{path}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, {}

    # ---- what it has ---------------------------------------------------------------------------------------

    def pid(self, process: str) -> int:
        return int((self.data / "run" / f"{process}.pid").read_text())

    def processes(self) -> dict[str, int]:
        """The process id of each process that it has started."""
        return {file.stem: int(file.read_text()) for file in sorted((self.data / "run").glob("[a-z]*.pid"))}

    def send(self, topic: str, records: Mapping[str, Mapping[str, Any]]) -> None:
        out = producer(self.bootstrap)
        for key, value in records.items():
            out.produce(topic, json.dumps(value), key)
        assert out.flush(60) == 0


def _title(part: Mapping[str, Any]) -> str:
    return part["name"] if part["kind"] == part["name"] else f"{part['kind']} {part['name']}"


@contextmanager
def upping(
    folder: Path, app: str, begun: Callable[[UpProcess], object] = lambda _: None, **environ: str
) -> Iterator[UpProcess]:
    """An application that has been started; its end is clean. ``begun`` is called while it starts."""
    up = UpProcess(folder, **environ)
    up.write(app)
    up.start()
    try:
        begun(up)
        up.until(lambda: "logs " in up.said(), "the application", 120)
        yield up
        up.end()
    finally:
        assert up.process is not None
        up.process.kill()
