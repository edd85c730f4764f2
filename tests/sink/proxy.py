"""A network that tests can cut: a TCP proxy in a thread."""

import contextlib
import socket
import threading

from support.servers import free_port


class Proxy:
    """Passes bytes to a port of this machine and back, until it is cut.

    Then connections end and new ones are refused.
    """

    def __init__(self, port: int) -> None:
        self.port = free_port()
        self._target = port
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()

    def join(self) -> None:
        self._listener = self._listen()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> socket.socket:
        return socket.create_server(("127.0.0.1", self.port))

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        self._open.add(source)
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()
