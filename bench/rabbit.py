"""RabbitMQ, one node of Debian's package, on loopback, with a folder and a port mapper of its own."""

import os
import signal
import socket
import subprocess
from pathlib import Path

from support.servers import free_port, wait_until

PROGRAMS = Path("/usr/lib/rabbitmq/bin")
GREETING, START = b"AMQP\0\0\x09\x01", 1
CONF = """
listeners.tcp.1 = 127.0.0.1:{port}
log.file.level = warning
log.console = false
collect_statistics_interval = 60000
"""


class RabbitProcess:
    """``end`` stops it, and the port mapper that its Erlang needs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = str(self.port)
        self._mapper_port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pid(self) -> int:
        return self._processes[-1].pid

    def start(self) -> None:
        for name in ("mnesia", "log", "home"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "rabbitmq.conf").write_text(CONF.format(port=self.port))
        (self.folder / "plugins").write_text("[].")
        (self.folder / "env.conf").touch()
        environment = {
            "PATH": os.environ["PATH"],
            "LC_ALL": "C.UTF-8",
            "HOME": str(self.folder / "home"),
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "env.conf"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "detached": "1",  # the start script then becomes the server instead of its parent
        }
        mapper = ["epmd", "-port", str(self._mapper_port), "-address", "127.0.0.1"]
        with (self.folder / "server.log").open("wb") as log:
            for command in (mapper, [str(PROGRAMS / "rabbitmq-server")]):
                self._processes.append(
                    subprocess.Popen(
                        command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                    )
                )
        wait_until(self._answers, 60, "RabbitMQ's first answer")

    def end(self) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=120)

    def _answers(self) -> bool:
        """The server's first frame, not just an open port."""
        assert self._processes[-1].poll() is None, (self.folder / "server.log").read_text()
        try:
            with socket.create_connection(("127.0.0.1", self.port), 2) as connection:
                connection.settimeout(5)
                connection.sendall(GREETING)
                return connection.recv(1) == bytes([START])
        except OSError:
            return False
