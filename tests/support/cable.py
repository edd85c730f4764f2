"""A cable that tests pull out: a network of its own, in which a machine that was reached falls silent without a word."""

import ctypes
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sink.proxy import Proxy

__all__ = ["Cable", "cable"]

CLONE_NEWNET = 0x40000000


class Cable(Proxy):
    """Passes bytes to a port of this machine, from an address at the other end of a cable. Pulled out, it drops packets silently."""

    def __init__(self, port: int, space: str, host: str) -> None:
        super().__init__(port)
        self.host = host
        self._space = space

    def pull(self) -> None:
        self._set("down")

    def plug(self) -> None:
        self._set("up")

    def _listen(self) -> socket.socket:
        """A socket stays in the network in which it was made; a thread can go there alone."""
        made: list[socket.socket] = []

        def listen() -> None:
            with Path(f"/run/netns/{self._space}").open() as space:
                if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            made.append(socket.create_server((self.host, self.port)))

        thread = threading.Thread(target=listen)
        thread.start()
        thread.join()
        return made[0]

    def _set(self, how: str) -> None:
        _ip("-n", self._space, "link", "set", "end", how)


@contextmanager
def cable(port: int) -> Iterator[Cable]:
    """Lays a cable to a port of this machine; only root can."""
    if os.getuid() != 0:
        pytest.skip("only root can lay a cable")
    chosen = secrets.randbelow(1 << 14)  # of its own: the kernel clears an earlier one away in its own time
    space, net = f"hw{os.getpid()}x{chosen:x}", f"10.{192 + chosen // 256}.{chosen % 256}"
    _ip("netns", "add", space)
    try:
        _ip("link", "add", space, "type", "veth", "peer", "name", "end", "netns", space)
        _ip("addr", "add", f"{net}.1/30", "dev", space)
        _ip("link", "set", space, "up")
        _ip("-n", space, "addr", "add", f"{net}.2/30", "dev", "end")
        _ip("-n", space, "link", "set", "end", "up")
        laid = Cable(port, space, f"{net}.2")
        laid.join()
        yield laid
        laid.cut()
    finally:
        subprocess.run(["ip", "link", "del", space], check=False)
        _ip("netns", "del", space)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
