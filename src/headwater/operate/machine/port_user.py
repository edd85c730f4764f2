"""Port user: the process of this machine that listens on a port, from what Linux says in /proc."""

import contextlib
from pathlib import Path
from typing import NamedTuple

__all__ = ["PortUser", "port_user"]

PROC = Path("/proc")
LISTENS = "0A"
TABLES = ("net/tcp", "net/tcp6")
SHOWN_CHARACTERS = 60


class PortUser(NamedTuple):
    """A process: its number, its command line and its working folder."""

    pid: int
    command: str
    folder: Path

    def is_of(self, data: Path) -> bool:
        """Whether it is one of Headwater's processes for this data folder."""
        notes = (data / "run").glob("*.pid")
        with contextlib.suppress(OSError):
            if str(self.pid) in {note.read_text().strip() for note in notes}:
                return True
        words = self.command.split()
        named = [(self.folder / word.removeprefix("--data=")).resolve() for word in words]
        return "headwater" in self.command and data.resolve() in named

    def __str__(self) -> str:
        _, mark, arguments = self.command.partition("headwater ")
        command = f"headwater {arguments}" if mark else self.command
        return f"process {self.pid}: {command[:SHOWN_CHARACTERS].strip()}"


def port_user(port: int) -> PortUser | None:
    """The process that listens on a port; None if it is not known, as for processes of other users."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for folder in PROC.glob("[0-9]*") if sockets else ():
        with contextlib.suppress(OSError):
            if any(_target(link) in sockets for link in (folder / "fd").iterdir()):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                command = " ".join(word.decode(errors="replace") for word in words).strip()
                return PortUser(int(folder.name), command, (folder / "cwd").readlink())
    return None


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _listening(port: int) -> list[str]:
    """The inodes of sockets that listen on a port."""
    found = []
    for table in TABLES:
        with contextlib.suppress(OSError):
            for line in (PROC / table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    found.append(words[9])
    return found
