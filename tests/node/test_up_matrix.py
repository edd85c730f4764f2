"""Each kind of part with each kind of fault: what else stays up, what the report says, and what heals.

One application with all kinds of parts under ``headwater up``; every cell is a fault in it, while the other parts work.
``docs/operations.md`` has the same table, and is held against it.
"""

import os
import re
import signal
import sqlite3
from collections.abc import Callable, Mapping
from typing import NamedTuple

import psycopg
import pytest
from confluent_kafka import Producer

from headwater.client.client import Client
from headwater.follow import results
from headwater.operate.log.topic import create
from sink.proxy import Proxy
from support import doctext
from support.databases import PostgresProcess, RedisProcess
from support.servers import free_port
from support.upprocess import UpProcess, upping

pytestmark = [pytest.mark.own_spark, pytest.mark.timeout(900)]

APP = """
    import os
    import signal
    from pathlib import Path

    import headwater as hw
    from pyspark.sql import functions as F

    FOLDER = Path({folder!r})
    app = hw.App("shop")

    class Order(hw.Event):
        id: int
        country: str
        cents: int

    app.stream("orders", Order, key="id", time=hw.ARRIVAL)
    app.sql("good", {good!r}, key="country")
    app.sql("sums", "SELECT country, sum(cents) AS cents FROM orders GROUP BY country", key="country")
    app.sql("twin", "SELECT country, max(id) AS newest FROM orders GROUP BY country", key="country")

    @app.view(key="id", on_error="stop")
    def strict(orders):
        def checked(country):
            if country == "xx":
                raise ValueError("no such country")
            return country

        return orders.select("id", F.udf(checked, "string")("country").alias("country"))

    @app.view(key="id")
    def calling(orders):
        def named(country):
            if (FOLDER / "view-away").exists():
                raise ConnectionError("the service of names is away")
            if (FOLDER / "view-crash").exists():
                os.kill(os.getpid(), signal.SIGKILL)
            return country.upper()

        return orders.select("id", F.udf(named, "string")("country").alias("name"))

    app.capture("db", hw.capture.Postgres("postgresql://postgres@127.0.0.1:{postgres}/postgres", ["public.product"]))
    app.sink("good", hw.sink.Sqlite({folder!r} + "/good.db"))
    app.sink("good", hw.sink.Redis("redis://127.0.0.1:{redis}"))
    app.sink("good", hw.sink.Sqlite({folder!r} + "/none.db", columns={{"country": "NOTHING"}}), name="good.refused")

    @app.worker("orders", timeout="2 seconds")
    def handle(order):
        if (FOLDER / "worker-crash").exists():
            os.kill(os.getpid(), signal.SIGKILL)

    @app.worker(topic="odd")
    def odd(message: dict):
        pass
"""
GOOD = "SELECT country, count(*) AS n FROM orders GROUP BY country"
KINDS = ("log", "view", "sink", "capture", "console", "worker")
COLUMNS = ("crashes", "refused", "away")
"""The columns of the page; a process that is killed once is in the first, as one that is killed again and again."""


class World:
    """The application, and what is around it."""

    def __init__(self, up: UpProcess, postgres: Proxy, redis: RedisProcess) -> None:
        self.up, self.postgres, self.redis = up, postgres, redis
        self.sent = 0

    def send(self, *countries: str, cents: int = 1) -> None:
        keys = range(self.sent, self.sent + len(countries))
        self.up.send(
            "orders",
            {
                str(key): {"id": key, "country": name, "cents": cents}
                for key, name in zip(keys, countries, strict=True)
            },
        )
        self.sent += len(countries)

    def stored(self) -> int:
        """The orders in the store of the sink that works."""
        with sqlite3.connect(self.up.folder / "good.db") as connection:
            try:
                return connection.execute("SELECT sum(n) FROM good").fetchone()[0] or 0
            except sqlite3.OperationalError:
                return 0

    def signal(self, process: str, number: signal.Signals) -> None:
        os.kill(self.up.pid(process), number)

    def kill(self, process: str, times: int = 1) -> None:
        """Kills a process, and its successors as soon as they are there."""
        for _ in range(times):
            old = self.up.pid(process)
            os.kill(old, signal.SIGKILL)
            self.up.until(lambda old=old: self.up.pid(process) != old, f"another {process}", 120)

    def touch(self, name: str) -> None:
        (self.up.folder / name).touch()

    def remove(self, name: str) -> None:
        (self.up.folder / name).unlink()

    def fence(self, view: str) -> None:
        """Another driver claims the run of a view, as one on another machine would."""
        newest = results.newest(Client(self.up.bootstrap), view)
        assert newest is not None
        other = Producer(
            {"bootstrap.servers": self.up.bootstrap, "transactional.id": f"headwater/{view}/{newest.run}"}
        )
        other.init_transactions(60)

    def make_compacted(self, topic: str) -> None:
        create(self.up.bootstrap, topic, 1, {"cleanup.policy": "compact"})


class Cell(NamedTuple):
    """A fault of one part, and what comes of it."""

    kind: str
    fault: str
    part: str
    begin: Callable[[World], object]
    error: str
    """A pattern of what the report says of the part."""
    state: str = "failing"
    heal: Callable[[World], object] | None = lambda _: None
    """What somebody does; by default nothing. With None the part stays as it is."""
    ends: tuple[str, ...] = ()
    """The processes that come to an end; all others stay the same."""
    takes: tuple[str, ...] = ()
    """Other parts, or kinds of parts, that the fault reaches too."""
    page: str = ""
    """What the table of the page has for it."""
    then: Mapping[str, str] = {}
    """The states of other parts that are others afterwards: a new driver takes over what a fenced one had."""
    too: tuple[tuple[str, str], ...] = ()
    """Other parts that must be failing too before it is healed, and what the report says of them."""

    @property
    def column(self) -> str:
        return "crashes" if self.fault in {"killed", "crash loop"} else self.fault


LOOPS = 2
"""So many restarts in a row are a loop."""


def process(kind: str, name: str, part: str, *takes: str) -> list[Cell]:
    """The cells of a process that is killed, once and again and again."""
    more = {"error": "SIGKILL", "ends": (name,), "takes": takes, "page": STARTED}
    return [
        Cell(kind, "killed", part, lambda world: world.kill(name), **more),
        Cell(kind, "crash loop", part, lambda world: world.kill(name, LOOPS), **more),
    ]


STARTED = "is started again"
CELLS = [
    *process("log", "broker", "log", "view", "sink", "capture", "worker", "console"),
    Cell(
        "log", "away", "log", lambda world: world.signal("broker", signal.SIGSTOP), "does not answer",
        heal=lambda world: world.signal("broker", signal.SIGCONT),
        takes=("view", "sink", "capture", "worker", "console"), page="it does not answer for six seconds: suspended",
        too=(("worker handle", "does not answer"),),
    ),
    *process("sink", "sinks", "sink good.sqlite", "sink"),
    Cell(
        "sink", "away", "sink good.redis", lambda world: world.redis.end(), "the store is away: ",
        heal=lambda world: world.redis.start(), page="the store does not answer",
    ),
    Cell("sink", "refused", "sink good.refused", lambda _: None, "NOTHING", "stopped", None, page="wrong type"),
    *process("capture", "capture-db", "capture db"),
    Cell(
        "capture", "away", "capture db", lambda world: world.postgres.cut(), "", heal=lambda world: world.postgres.join(),
        page="the database does not answer",
    ),
    *process("console", "console", "console"),
    Cell(
        "console", "away", "console", lambda world: world.signal("console", signal.SIGSTOP), "does not answer",
        heal=lambda world: world.signal("console", signal.SIGCONT), page="it does not answer for six seconds",
    ),
    Cell(
        "worker", "refused", "worker odd", lambda world: (world.make_compacted("odd"), world.kill("workers")),
        "topic 'odd' is compacted", "stopped", None, ends=("workers",), takes=("worker",), page="compacted",
    ),
    process("worker", "workers", "worker handle", "worker")[0],
    Cell(
        "worker", "crash loop", "worker handle", lambda world: (world.touch("worker-crash"), world.send("de")), "SIGKILL",
        heal=lambda world: world.remove("worker-crash"), ends=("workers",), takes=("worker",), page=STARTED,
    ),
    Cell(
        "view", "away", "view calling", lambda world: (world.touch("view-away"), world.send("de")),
        "the service of names is away", heal=lambda world: world.remove("view-away"),
        page="a service that its function calls",
    ),
    Cell(
        "view", "crash loop", "view calling", lambda world: (world.touch("view-crash"), world.send("de")), "crashed",
        heal=lambda world: world.remove("view-crash"), page="its query is started again",
    ),
    Cell(
        "view", "refused", "view strict", lambda world: world.send("xx"), r"record at orders, partition \d+, offset \d+: ValueError: no such country \(in app\.py, line \d+, in checked", "stopped", None,
        page='it has `on_error="stop"`',
    ),
    Cell(
        "view", "refused", "view sums", lambda world: world.send("de", "de", cents=2**62), "(?i)overflow", "stopped", None,
        page="an aggregate overflows",
    ),
    Cell(
        "view", "refused", "view twin", lambda world: (world.fence("twin"), world.send("fr")), "another driver", "stopped",
        None, page="another driver runs it",
    ),
    Cell(
        "view", "killed", "view good", lambda world: world.kill("pipeline"), "", ends=("pipeline",), takes=("view",),
        page="all views start again", then={"view twin": "running"},
    ),
]  # fmt: skip
"""Those that stay stopped come late, and what ends Spark is last."""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matrix")
    database = PostgresProcess()
    database.start()
    proxy = Proxy(database.port)
    proxy.join()
    redis = RedisProcess(folder / "redis")
    redis.start()
    with psycopg.connect(database.url) as connection:
        connection.execute("CREATE TABLE product (id INT PRIMARY KEY)")
    ports = {"postgres": proxy.port, "redis": redis.port}
    try:
        with upping(folder, APP.format(folder=str(folder), good=GOOD, **ports)) as up:
            running = World(up, proxy, redis)
            running.send("de", "fr", "us")
            up.until(lambda: running.stored() == 3, "the first orders", 120)
            up.until(lambda: set(up.states().values()) <= {"running", "stopped"}, "its parts")
            yield running
    finally:
        redis.end()
        proxy.cut()
        database.end()


def is_as(part: Mapping[str, object], state: str, error: str) -> bool:
    return part["state"] == state and re.search(error, str(part["error"])) is not None


def is_taken(cell: Cell, part: str) -> bool:
    return part == cell.part or part in cell.takes or part.partition(" ")[0] in cell.takes


@pytest.mark.parametrize(
    "cell", CELLS, ids=lambda cell: f"{cell.kind}-{cell.fault}-{cell.part.rpartition(' ')[2]}"
)
def test_a_fault_stays_where_it_is_and_heals(world, cell):
    up = world.up
    before, processes, said = up.parts(), up.processes(), len(up.said())
    states = {part: status["state"] for part, status in before.items()}
    cell.begin(world)
    if cell.column == "crashes":
        restarts = before[cell.part]["restarts"] + (LOOPS if cell.fault == "crash loop" else 1)
        up.until(lambda: up.parts()[cell.part]["restarts"] >= restarts, f"a restart of {cell.part}", 90)
        up.says(f"{re.escape(cell.part)} (is failing: |was started again)", said)
    else:
        up.until(
            lambda: is_as(up.parts()[cell.part], cell.state, cell.error), f"{cell.part} {cell.state}", 90
        )
        if states[cell.part] != cell.state:
            up.says(
                f"{re.escape(cell.part)} {'has stopped' if cell.state == 'stopped' else 'is failing'}: ", said
            )
        if "log" not in (cell.kind, *cell.takes) and cell.kind != "console":
            status, shown = up.get(f"/health?part={cell.part.replace(' ', '+')}")
            assert (status, shown["parts"][0]["state"]) == (503, cell.state)
    for part, error in cell.too:
        up.until(
            lambda part=part, error=error: is_as(up.parts()[part], "failing", error), f"{part} failing", 90
        )
    others = {part for part in states if not is_taken(cell, part)}
    assert {part: up.states()[part] for part in others} == {part: states[part] for part in others}
    if cell.heal is not None:
        cell.heal(world)
        up.until(lambda: up.states()[cell.part] == "running", f"{cell.part} well again", 120)
    expected = states | {cell.part: "running" if cell.heal is not None else cell.state}
    expected |= cell.then
    up.until(lambda: up.states() == expected, "all other parts as they were", 120)
    assert re.search(cell.error, up.parts()[cell.part]["error"]), "the last error stays in the report"
    kept = processes.keys() - set(cell.ends)
    assert {name: up.processes()[name] for name in kept} == {name: processes[name] for name in kept}
    assert all(up.processes()[name] != processes[name] for name in cell.ends)

    world.send("de")
    up.until(lambda: world.stored() == world.sent, "an order that comes afterwards")


def test_the_command_says_all_that_the_cells_have_left(world):
    """What the cells have asked of the report, typed once."""
    shown = world.up.command("status")
    assert shown.returncode == 1
    for cell in CELLS:
        if cell.state == "stopped" and cell.part != "view twin":
            assert re.search(f"{re.escape(cell.part)} +stopped", shown.stdout), shown.stdout


def test_logs_survive_what_has_happened(world):
    """Each process has one log, with a line for each of its starts."""
    for process in ("broker", "console", "sinks", "workers", "capture-db", "pipeline"):
        text = (world.up.data / "logs" / f"{process}.log").read_text()
        assert len(re.findall(f"^---- {process} starts, ", text, re.MULTILINE)) >= 2, process


def test_a_new_version_starts_all_but_the_changed_view_and_its_line_works_as_it_is_printed(world):
    """And a view that another driver has fenced starts with ``headwater up``."""
    up = world.up
    up.end()
    said = len(up.said())
    text = up.app.read_text()
    up.write(
        text.replace(GOOD, "SELECT country, count(*) AS n, max(id) AS newest FROM orders GROUP BY country")
    )
    up.start()
    up.until(lambda: "logs " in up.said()[said:], "the application", 120)
    up.until(lambda: up.states()["view good"] == "stopped", "the end of the changed view")
    line = re.search(r"headwater view rebuild good \S+", up.says("view good has stopped: ", said))
    assert line is not None
    expected = {
        "view calling": "running",
        "view twin": "running",
        "worker handle": "running",
        "console": "running",
    }
    up.until(lambda: up.states() | expected == up.states(), "the other parts")
    done = up.command(*line[0].split()[1:])
    assert done.returncode == 0, done.stderr
    up.until(lambda: up.states()["view good"] == "running", "the view with its new run", 120)
    rows = lambda: up.get("/views/good")[1].get("rows", [])  # noqa: E731
    up.until(lambda: sum(row["n"] for row in rows()) == world.sent, "all orders in the new rows")
    assert all("newest" in row for row in rows())


def test_headwater_up_ends_with_the_reason_if_its_log_cannot_begin(tmp_path):
    up = UpProcess(tmp_path, HEADWATER_BROKER_PORT=str(port := free_port()))
    taken = Proxy(0)
    taken.port = port
    taken.join()
    up.write("import headwater as hw\napp = hw.App('empty')\n")
    try:
        up.start()
        assert up.process is not None
        assert up.process.wait(60) == 3
    finally:
        taken.cut()
    assert f"port {port} on 127.0.0.1 cannot be used" in up.said()


def rows_of_the_page() -> dict[str, dict[str, str]]:
    """The table of the page: for each kind of part, what it has in each column."""
    text = (doctext.ROOT / "docs" / "operations.md").read_text()
    table = text.partition("## What fails, and what heals")[2].partition("\n\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]
    return {row[0].strip("| "): dict(zip(COLUMNS, row[1:], strict=True)) for row in rows}


def test_the_page_has_every_cell_and_no_other():
    page = rows_of_the_page()
    assert tuple(page) == KINDS
    for cell in CELLS:
        assert cell.page in page[cell.kind][cell.column], f"{cell.kind}, {cell.column}: {cell.page}"
    tried = {(part.partition(" ")[0], cell.column) for cell in CELLS for part in (cell.part, *dict(cell.too))}
    said = {
        (kind, column)
        for kind, row in page.items()
        for column, text in row.items()
        if not text.startswith("\N{EN DASH}")
    }
    assert tried == said


def test_each_kind_is_killed_and_crashes_again_and_again():
    faults = {(part.partition(" ")[0], cell.fault) for cell in CELLS for part in (cell.part, *dict(cell.too))}
    assert faults >= {(kind, fault) for kind in KINDS for fault in ("killed", "crash loop", "away")}
