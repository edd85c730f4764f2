"""The cluster on one machine: three Apache Kafka brokers, and Spark standalone with a master and two workers, as if on machines of their own.

Each worker is a user of its own with a folder of its own, so that a path which is shared by chance fails here as it would elsewhere.
What driver and workers may share is ``FOLDER/shared``, by their group. ``FOLDER/headwater.toml`` has the settings for an application.
"""

import argparse
import grp
import json
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyspark
from confluent_kafka import KafkaException

from headwater.client.client import admin
from headwater.errors import HeadwaterError, MachineError, UsageError
from headwater.node.supervisor import MARK, end_marked, marked
from support.servers import LOG4J, answers, free_port, kafka_jars, wait_until

BROKERS = ("broker-1", "broker-2", "broker-3")
MASTER = "master"
WORKERS = ("worker-1", "worker-2")
PARTS = (*BROKERS, MASTER, *WORKERS)
GROUP = "headwater"
HOST = "127.0.0.1"
WORKER_HOSTS = {"worker-1": "127.0.0.2", "worker-2": "127.0.0.3"}
"""Spark takes executors at one address for one machine, whose disk they all may read."""
BROKER_HEAP = "256m"
DAEMON_HEAP = "256m"
WORKER_MEMORY = "1g"
"""What a worker offers: one executor of the usual size, and its Python beside it."""
SMALL_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
START_S = 180

SERVER_PROPERTIES = """
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
initial.broker.registration.timeout.ms=240000
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={folder}/data
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
offsets.topic.num.partitions=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
transaction.state.log.num.partitions=3
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
group.initial.rebalance.delay.ms=0
num.partitions=2
"""


class Plan(msgspec.Struct, frozen=True):
    """What stays the same from start to start, kept in ``FOLDER/cluster.json``."""

    kafka_id: str
    ports: dict[str, int]
    python: str
    """The Python that workers run; the driver's own, if they may."""


class Cluster:
    """The parts of a cluster in a folder. A part is whatever carries its mark: its process and all that this has started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._file = self.folder / "cluster.json"
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def up(self) -> None:
        """Makes users and folders if they are missing, and starts what does not run."""
        _require_root()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "logs").mkdir(exist_ok=True)
        self._make_workers()
        if not self._file.exists():
            self._file.write_bytes(msgspec.json.encode(self._draw()))
        (self.folder / "headwater.toml").write_text(self.settings())
        self._format()
        self.start(*PARTS)

    def down(self) -> None:
        self.kill(*reversed(PARTS))

    def start(self, *parts: str) -> None:
        for part in parts:
            self.launch(part)
        for part in parts:
            self.wait(part)

    def kill(self, *parts: str) -> None:
        """Ends all processes of each part at once (-9)."""
        for part in parts:
            end_marked(self._mark(part))

    def running(self, part: str) -> bool:
        return bool(marked(self._mark(part)))

    def settings(self) -> str:
        """The settings of an application that runs here."""
        plan = self._plan()
        lines = [
            f'log = "kafka://{self._bootstrap(plan)}"',
            f'spark = "spark://{HOST}:{plan.ports[MASTER]}"',
            f'store = "sqlite:{self.folder}/shared/views"',
        ]
        if plan.python != sys.executable:  # the workers may not run the driver's
            lines += ["[spark_options]", f'"spark.pyspark.python" = "{plan.python}"']
        return "\n".join(lines) + "\n"

    def launch(self, part: str) -> None:
        """Starts a part, unless it runs, and does not wait for it."""
        _require_root()
        if self.running(part):
            return
        plan, place = self._plan(), self.folder / part
        environ = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "HOME": str(place), MARK: self._mark(part)}
        user = None
        if part in BROKERS:
            command = [*_kafka(place), "kafka.Kafka", str(place / "server.properties")]
        else:
            command, more = self._spark(part, plan)
            environ |= more
            user = _user(part) if part in WORKERS else None
        with (self.folder / "logs" / f"{part}.log").open("ab") as log:
            self._started[part] = subprocess.Popen(
                command,
                cwd=place,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=[GROUP] if user else None,
                umask=0o002,
            )

    def wait(self, part: str) -> None:
        """Until a part does its work."""
        plan, log = self._plan(), self.folder / "logs" / f"{part}.log"
        port = plan.ports[part]
        conditions: dict[str, Callable[[], bool]] = dict.fromkeys(BROKERS, lambda: self._in_quorum(part))
        conditions |= dict.fromkeys(WORKERS, lambda: port in self._alive_workers(plan))
        ready = conditions.get(part, lambda: answers(port))

        def gone() -> bool:
            return part in self._started and self._started[part].poll() is not None

        wait_until(lambda: ready() or gone(), START_S, f"{part} (see {log})")
        if gone():
            raise MachineError(f"{part} has ended at its start", hint=f"see {log}")

    # ---- Kafka -----------------------------------------------------------------------------------------

    def _format(self) -> None:
        """Gives the brokers their folders, once."""
        plan = self._plan()
        voters = ",".join(f"{n}@{HOST}:{plan.ports[f'{b}-controller']}" for n, b in enumerate(BROKERS, 1))
        started = []
        for number, part in enumerate(BROKERS, 1):
            place = self.folder / part
            if (place / "data").exists():
                continue
            (place / "tmp").mkdir(parents=True, exist_ok=True)
            (place / "log4j2.yaml").write_text(LOG4J)
            properties = place / "server.properties"
            ports = {"port": plan.ports[part], "controller": plan.ports[f"{part}-controller"]}
            text = SERVER_PROPERTIES.format(number=number, voters=voters, host=HOST, folder=place, **ports)
            properties.write_text(text)
            tool = ["kafka.tools.StorageTool", "format", "-t", plan.kafka_id, "-c", str(properties)]
            command = [*_kafka(place), *tool]
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        for process in started:
            said, _ = process.communicate(timeout=START_S)
            if process.returncode:
                raise MachineError(
                    "a broker's folder cannot be made", got=said.decode(errors="replace")[-500:]
                )

    def _in_quorum(self, part: str) -> bool:
        """Whether the brokers know each other, this one among them; while a quorum is away this is unknown."""
        if not answers(self._plan().ports[part]):
            return False
        if sum(map(self.running, BROKERS)) < 2:
            return True
        try:
            known = admin(f"{HOST}:{self._plan().ports[part]}").list_topics(timeout=2).brokers
        except KafkaException:
            return False
        return BROKERS.index(part) + 1 in known

    def _bootstrap(self, plan: Plan) -> str:
        return ",".join(f"{HOST}:{plan.ports[part]}" for part in BROKERS)

    # ---- Spark -----------------------------------------------------------------------------------------

    def _spark(self, part: str, plan: Plan) -> tuple[list[str], dict[str, str]]:
        home = Path(pyspark.__file__).parent
        place, host = self.folder / part, WORKER_HOSTS.get(part, HOST)
        (place / "tmp").mkdir(parents=True, exist_ok=True)
        environ = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": DAEMON_HEAP,
            "TMPDIR": str(place / "tmp"),
            "JAVA_TOOL_OPTIONS": " ".join([*SMALL_JVM, f"-Djava.io.tmpdir={place / 'tmp'}"]),
        }
        here = [
            "--host",
            host,
            "--port",
            str(plan.ports[part]),
            "--webui-port",
            str(plan.ports[f"{part}-web"]),
        ]
        run = [str(home / "bin" / "spark-class")]
        if part == MASTER:
            return [*run, "org.apache.spark.deploy.master.Master", *here], environ
        environ |= {
            "PYTHONPATH": sysconfig.get_path("purelib"),  # libraries; our code comes with the application
            "SPARK_LOCAL_DIRS": str(place / "scratch"),
            "SPARK_WORKER_DIR": str(place / "work"),
        }
        offer = ["--cores", "1", "--memory", WORKER_MEMORY]
        master = f"spark://{HOST}:{plan.ports[MASTER]}"
        return [*run, "org.apache.spark.deploy.worker.Worker", *here, *offer, master], environ

    def _alive_workers(self, plan: Plan) -> set[int]:
        """The ports of the workers that the master counts on."""
        try:
            with urllib.request.urlopen(
                f"http://{HOST}:{plan.ports['master-web']}/json/", timeout=5
            ) as answer:
                return {each["port"] for each in json.load(answer)["workers"] if each["state"] == "ALIVE"}
        except OSError:
            return set()

    def _make_workers(self) -> None:
        """A group, the users in it, a folder for each and one for all."""
        _unless_known(lambda: grp.getgrnam(GROUP), "groupadd", "--system", GROUP)
        shared = self.folder / "shared"
        shared.mkdir(exist_ok=True)
        shutil.chown(shared, group=GROUP)
        shared.chmod(0o2770)
        (self.folder / MASTER).mkdir(exist_ok=True)
        for part in WORKERS:
            user = _user(part)
            options = ["--system", "--no-create-home", "--user-group", "--groups", GROUP]
            _unless_known(lambda user=user: pwd.getpwnam(user), "useradd", *options, user)  # type: ignore[misc]
            place = self.folder / part
            place.mkdir(exist_ok=True)
            for each in (place, place / "tmp"):
                each.mkdir(exist_ok=True)
                shutil.chown(each, user, user)
                each.chmod(0o700)

    def _draw(self) -> Plan:
        controllers = [f"{part}-controller" for part in BROKERS]
        webs = [f"{part}-web" for part in (MASTER, *WORKERS)]
        # An id that began with a dash would be read as an option.
        kafka_id = f"headwater{uuid.uuid4().hex[:13]}"
        ports = {name: free_port() for name in (*PARTS, *controllers, *webs)}
        return Plan(kafka_id, ports, self._worker_python())

    def _worker_python(self) -> str:
        """A Python that the workers' users can run: this one, or else the machine's of the same version."""
        system = shutil.which("python{}.{}".format(*sys.version_info), path=SYSTEM_PATH)
        said = ""
        for python in filter(None, (sys.executable, system)):
            try:
                done = subprocess.run(
                    [python, "-c", "import pyarrow, lmdb"],
                    env={"PYTHONPATH": sysconfig.get_path("purelib"), "PATH": SYSTEM_PATH},
                    cwd=self.folder / WORKERS[0],
                    user=_user(WORKERS[0]),
                    group=_user(WORKERS[0]),
                    extra_groups=[GROUP],
                    capture_output=True,
                    text=True,
                    check=False,
                )
            except PermissionError as error:
                said = str(error)
                continue
            if done.returncode == 0:
                return python
            said = done.stderr.strip()
        raise MachineError(
            f"user {_user(WORKERS[0])} can run no Python with the libraries of this one",
            got=said,
            expected=f"to read {self.folder} and {sys.prefix}, and to run its interpreter",
            hint="choose a FOLDER that every user can reach, and a virtual environment that is not in a home folder",
        )

    def _plan(self) -> Plan:
        if not self._file.exists():
            raise UsageError(
                f"there is no cluster in {self.folder}", hint="make one: deploy/cluster up FOLDER"
            )
        return msgspec.json.decode(self._file.read_bytes(), type=Plan)

    def _mark(self, part: str) -> str:
        return f"{self.folder}/{part}"


def _user(part: str) -> str:
    return f"hw-{part}"


def _kafka(place: Path) -> list[str]:
    options = [f"-Xmx{BROKER_HEAP}", *SMALL_JVM, f"-Djava.io.tmpdir={place / 'tmp'}"]
    options += [f"-Dlog4j2.configurationFile={place}/log4j2.yaml", "-cp", f"{kafka_jars()}/*"]
    return ["java", *options]


def _require_root() -> None:
    if os.geteuid() != 0:
        raise UsageError(
            "the cluster starts each worker as a user of its own, which only root may do",
            got=f"user {os.geteuid()}",
            hint="run it with sudo, or start deploy/compose.yaml",
        )


def _unless_known(known: Callable[[], object], *command: str) -> None:
    try:
        known()
    except KeyError:
        subprocess.run(command, check=True, env={"PATH": f"{SYSTEM_PATH}:/usr/sbin:/sbin"})


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="deploy/cluster", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("do", choices=["up", "down", "status", "kill", "start"])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of kill (-9) and start: {', '.join(PARTS)}"
    )
    arguments = parser.parse_args()
    cluster = Cluster(arguments.folder)
    if (arguments.do in {"kill", "start"}) != bool(arguments.parts) or set(arguments.parts) - set(PARTS):
        parser.error(f"kill and start take parts ({', '.join(PARTS)}), the others none")
    try:
        if arguments.do == "up":
            cluster.up()
            sys.stdout.write(cluster.settings())
        elif arguments.do == "down":
            cluster.down()
        elif arguments.do == "status":
            for part in PARTS:
                sys.stdout.write(f"{part}  {'runs' if cluster.running(part) else 'is away'}\n")
        else:
            getattr(cluster, arguments.do)(*arguments.parts)
    except HeadwaterError as error:
        sys.stderr.write(f"deploy/cluster: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
