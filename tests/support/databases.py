"""Real databases for the tests: each on loopback, on a free port, with a folder of its own, and run as a user that may not be root."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pymysql

from support.servers import answers, free_port, wait_until

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
wal_level = logical
max_wal_senders = 10
max_replication_slots = 10
shared_buffers = 64MB
fsync = off
log_min_messages = warning
"""


def _runs(pid: int) -> bool:
    """Whether a process is there, and not only its remains."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class PostgresProcess:
    """PostgreSQL with logical replication on; it can be killed and started again on the same folder and port.

    Its folder is directly under the temporary one: the server refuses to run as root, and its own user may not enter others' folders.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headwater-postgres-"))
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._user = "postgres" if os.getuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if not (self.folder / "data" / "PG_VERSION").exists():
            self._create()
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [PROGRAMS[-1] / "postgres", "-D", self.folder / "data", "-p", str(self.port)],
                stdout=log,
                stderr=log,
                user=self._user,
                group=self._user,
                extra_groups=[] if self._user else None,
                cwd=self.folder,
            )
        wait_until(self._ready, what=f"PostgreSQL in {self.folder}")

    def kill(self) -> None:
        """Ends all of its processes at once, as a power cut would; none is left when it returns, since a successor would refuse to start."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)  # it starts no more of them
        listed = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        children = [int(pid) for pid in listed]
        for pid in (self._process.pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        wait_until(lambda: not any(map(_runs, children)), what="the end of the server's processes")

    def end(self) -> None:
        """Stops it and removes its folder."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # "fast": sessions are ended
            self._process.wait(120)
        shutil.rmtree(self.folder)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _create(self) -> None:
        if self._user:
            account = pwd.getpwnam(self._user)
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        create = [PROGRAMS[-1] / "initdb", "-D", self.folder / "data", "-U", "postgres", "--auth=trust"]
        subprocess.run(
            [*create, "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"],
            check=True,
            stdout=subprocess.DEVNULL,
            user=self._user,
            group=self._user,
            extra_groups=[] if self._user else None,
            cwd=self.folder,
        )
        with (self.folder / "data" / "postgresql.conf").open("a") as settings:
            settings.write(SETTINGS)

    def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError((self.folder / "server.log").read_text()[-2000:])
        return (
            answers(self.port)
            and subprocess.run(
                [PROGRAMS[-1] / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
            ).returncode
            == 0
        )


class RedisProcess:
    """Redis that syncs each write before it answers; it can be killed and started again on the same folder and port."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._arguments = arguments or ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen([*command, *self._arguments], stdout=log, stderr=log)
        wait_until(self._ready, what=f"Redis in {self.folder}")

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(120)

    def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError((self.folder / "server.log").read_text()[-2000:])
        if not answers(self.port):
            return False
        with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")


MARIADB_SETTINGS = """
[mysqld]
bind-address=127.0.0.1
server-id=1
log-bin=bin
binlog_format=ROW
binlog_row_image=FULL
binlog_row_metadata=FULL
character-set-server=utf8mb4
innodb_buffer_pool_size=64M
innodb_log_file_size=64M
innodb_flush_log_at_trx_commit=1
sync_binlog=1
max_connections=50
performance_schema=OFF
"""


class MariaDBProcess:
    """MariaDB with a row binlog; it can be killed and started again on the same folder and port. `user` has the least rights."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headwater-mariadb-"))
        self.port = free_port()
        self.url = f"mysql://capture:secret@127.0.0.1:{self.port}"
        self._user = "mysql" if os.getuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        if not (self.folder / "data" / "mysql").exists():
            self._create()
        command = [
            "mariadbd",
            f"--defaults-file={self.folder / 'my.cnf'}",
            f"--datadir={self.folder / 'data'}",
        ]
        command += [f"--port={self.port}", f"--socket={self.folder / 's.sock'}", *options]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                user=self._user,
                group=self._user,
                extra_groups=[] if self._user else None,
                cwd=self.folder,
            )
        wait_until(self._ready, 60, what=f"MariaDB in {self.folder}")

    def connect(self, **options: object) -> Any:
        """A connection with all rights, from which nothing is committed by itself."""
        return pymysql.connect(host="127.0.0.1", port=self.port, user="root", charset="utf8mb4", **options)

    def kill(self) -> None:
        """Ends it at once, as a power cut would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ends it in order, with nothing left to recover from its binlog."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(120)

    def end(self) -> None:
        """Stops it and removes its folder."""
        self.stop()
        shutil.rmtree(self.folder)

    def _create(self) -> None:
        (self.folder / "my.cnf").write_text(MARIADB_SETTINGS)
        if self._user:
            account = pwd.getpwnam(self._user)
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        create = [
            "mariadb-install-db",
            f"--defaults-file={self.folder / 'my.cnf'}",
            f"--datadir={self.folder / 'data'}",
        ]
        create += [
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
            "--skip-log-bin",
        ]
        subprocess.run(
            create,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=self._user,
            group=self._user,
            extra_groups=[] if self._user else None,
            cwd=self.folder,
        )

    def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError((self.folder / "server.log").read_text()[-2000:])
        if not answers(self.port):
            return False
        try:
            connection = self.connect(connect_timeout=2)
        except pymysql.err.OperationalError:
            return False
        with connection, connection.cursor() as cursor:
            cursor.execute("CREATE USER IF NOT EXISTS capture@'127.0.0.1' IDENTIFIED BY 'secret'")
            cursor.execute(
                "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO capture@'127.0.0.1'"
            )
        return True
