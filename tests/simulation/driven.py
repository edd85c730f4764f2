"""A life of views: the real driver on a scripted engine, through hours of faults, against a model that knows every record.

    driver   Runner, Publisher, RunResults, InputTimes, Follow, Pace, Rebuild as they are, with state files on a real disk
    engine   `engine.Scripted` in Spark's place
    log      the real broker in virtual time (`ground.Ground`), which is killed and loses its power with the machine

After each step all readers look (`views.Shown`). At the end faults are over: every view must catch up, and its rows are those of all records.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial

from headwater.config import Settings
from headwater.declare.app import App
from headwater.errors import FencedError, MachineError, NotReachedError, UsageError
from headwater.follow.follower import wait
from headwater.operate.views.rebuild import Rebuild
from headwater.pipeline.kill_points import POINTS, SWAP_POINTS
from headwater.pipeline.run.runner import Runner
from headwater.position import Position
from headwater.result import Result
from simulation.ending import ending, is_defect
from simulation.engine import Moods, Scripted
from simulation.ground import ADDRESS, HOUR_S, play
from simulation.model import Wrong
from simulation.network import Link, Network
from simulation.processes import Machine, Process
from simulation.traffic import Traffic, declared
from simulation.views import Shown
from simulation.world import Loop

__all__ = ["Driven", "fails", "script", "shrunk"]

SLACK_S = 1.9
"""Waits of the driver are stretched to this; a driver that looks less often than every two seconds does not look."""
SLOW_S = (0.0, 1.0, 40.0, 100.0)
"""How long steps of a slow engine take."""
TWINS = 0.15
"""The share of lives that begin with two drivers."""
CATCH_UP_S = 3 * HOUR_S
STEPS: dict[str, int] = {
    "work": 30,
    "quiet": 8,
    "killed_at_a_point": 12,
    "killed": 8,
    "asleep": 5,
    "two_drivers": 5,
    "stopped": 3,
    "broker_killed": 4,
    "power_cut": 5,
    "clock_step": 3,
    "slow_engine": 6,
    "slow_log": 3,
    "failing_tasks": 3,
    "slow_sink": 3,
    "rebuild": 6,
    "rebuild_killed": 6,
    "back": 2,
    "waited": 4,
    "days": 2,
    "more_partitions": 1,
    "records_deleted": 1,
}


def script(seed: int, steps: int, only: Sequence[str] = ()) -> list[tuple[str, int]]:
    """What happens in a life, and the seed of each step; the first one chooses the views. ``only``: steps to choose from."""
    chance = random.Random(seed)
    weights = {kind: weight for kind, weight in STEPS.items() if not only or kind in only} or {"work": 1}
    kinds = chance.choices(list(weights), weights=list(weights.values()), k=steps)
    views, work = ("views", chance.getrandbits(32)), ("work", chance.getrandbits(32))
    rest = [work, *((kind, chance.getrandbits(32)) for kind in kinds), ("end", chance.getrandbits(32))]
    twins = [("twins", chance.getrandbits(32))] if chance.random() < TWINS or "twins" in only else []
    return [views, *twins, *rest]


def fails(seed: int, steps: list[tuple[str, int]]) -> str | None:
    try:
        play(Driven, seed, steps)
    except Exception as error:  # noqa: BLE001  what a life ends with is its result
        return ending(error)
    return None


def shrunk(seed: int, steps: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The same failure in fewer steps; the views stay."""
    first, steps = steps[:1], steps[1:]
    size = len(steps) // 2
    while size:
        at = 0
        while at < len(steps):
            fewer = steps[:at] + steps[at + size :]
            if fewer and is_defect(fails(seed, first + fewer)):
                steps = fewer
            else:
                at += size
        size //= 2
    return first + steps


class Driver(Process):
    """A process that runs the views."""

    def __init__(self, life: "Driven", name: str) -> None:
        self.stopping = False
        self._life = life
        super().__init__(life.hub, name, self._drive)

    def _drive(self) -> None:
        runner = Runner(self._life.app, self._life.settings, engine=Scripted(self._life.moods))
        runner.start()
        while not runner.wait(5.0):
            if self.stopping:
                runner.stop()


class Driven(Traffic):
    """The views of two input topics, and who runs them."""

    app: App
    settings: Settings

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.moods = Moods()
        self.driver: Driver | None = None
        self.others: list[Process] = []
        """Zombies and rebuilds."""
        self.rivals = 0
        """How many have claimed the place of a driver since that was started."""
        self.twins = self.lossy = False
        """Whether the log lacks records that views have read."""

    async def go(self, steps: list[tuple[str, int]]) -> None:
        self.machine = Machine(self.hub, random.Random(steps[0][1]))
        self.moods.wrote = lambda file: self.machine.synced.discard(str(file))
        self.moods.news = self.has_news
        self.hub.slack = SLACK_S
        self.writers = Link(Network(self.hub, lambda: self.broker))
        with self.machine.running():
            await self.open()
            for kind, seed in steps:
                self.chance = random.Random(seed)
                await getattr(self, f"step_{kind}")()
                if kind not in {"views", "end"}:
                    await self.supervise()
                    await self.look()
            self.kill_all()

    def kill_all(self) -> None:
        for process in [*self.others, *([self.driver] if self.driver else [])]:
            process.kill()
        self.others, self.driver = [], None

    async def step_views(self) -> None:
        """Chooses the application and starts it."""
        self.app = declared(self.chance)
        self.graph = self.app.graph()
        self.settings = Settings(
            log=f"kafka://{ADDRESS}",
            view_tables=f"sqlite:{self.machine.folder}/views",
            partitions=2,
            trigger_ms=2000,
            pace_records=60,
        )
        self.records_max = self.chance.choice((5, 30, 1000))
        await self.create("a", 2, retention_ms="-1")
        await self.create("b", 1, retention_ms="-1")
        for name, view in self.graph.views.items():
            self.shown[name] = Shown(view, self.machine.folder / "checkpoints" / name)
        Scripted.records_max = self.records_max
        self.driver = Driver(self, "driver")
        self.hub.task(self.follow_rows())

    async def during(self, seconds: float) -> None:
        """Lets time pass with traffic, and starts what has ended."""
        task = self.hub.task(self.writing(seconds))
        until = self.loop.time() + seconds
        while self.loop.time() < until:
            await asyncio.sleep(min(20, until - self.loop.time()))
            await self.supervise()
        await task

    # ---- who runs ----------------------------------------------------------------------------------------

    async def supervise(self) -> None:
        """Looks whether the driver has ended, and for a good reason; it is started again."""
        for process in [*self.others]:
            if not process.alive:
                self.others.remove(process)
                self.judge(process)
        if self.driver is not None and not self.driver.alive:
            ended, self.driver = self.driver, None
            self.judge(ended)
        if self.driver is None:
            waiting = next((each for each in self.others if isinstance(each, Driver)), None)
            if waiting is not None:
                self.others.remove(waiting)
            self.driver = waiting or Driver(self, "driver")

    def judge(self, process: Process) -> None:
        match process.error:
            case None | MachineError() | NotReachedError():
                return
            case FencedError():
                if not self.rivals:
                    raise Wrong(f"{process.name} was fenced without a rival")
            case UsageError() if self.excused(process):
                return
            case error:
                raise Wrong(f"{process.name} ended: {type(error).__name__}: {error}") from error

    def excused(self, process: Process) -> bool:
        """Whether a rebuild may be refused so, or one of two drivers that began at once."""
        said = str(process.error)
        if process.name != "rebuild":
            return self.twins and "written by another run" in said
        return "no earlier run" in said or "is empty" in said or (self.lossy and "no longer holds" in said)

    async def at_a_switch(self, process: Process, act: Callable[[], object]) -> None:
        """Does something at one of the next switch points of a process, while records are written; not if it does not come there."""
        task = self.hub.task(self.writing(30))
        count = self.chance.choice((1, 2, 5, 20, 60, 120))
        actor = self.chance.choice([each for each in process.actors if each.alive] or [process.main])
        reached = asyncio.ensure_future(self.hub.switches(count, actor))
        self.hub.tasks.add(reached)
        await asyncio.wait({reached}, timeout=120)
        if reached.done() and process.alive:
            act()
        reached.cancel()
        await task

    # ---- steps -------------------------------------------------------------------------------------------

    async def step_work(self) -> None:
        await self.during(self.chance.choice((20, 60, 200)))

    async def step_twins(self) -> None:
        """Two drivers are started at once, before there is a first result."""
        self.others.append(self.driver)
        self.rivals += 1
        self.twins = True
        self.driver = Driver(self, "second driver")
        await self.during(60)
        self.twins = False

    async def step_quiet(self) -> None:
        """Without records, time advances by the clock, and ticks close what is open."""
        await asyncio.sleep(self.chance.choice((20, 60, 240)))

    async def step_killed(self) -> None:
        """The driver is gone at one of its switch points."""
        await self.at_a_switch(self.driver, self.driver.kill)
        await asyncio.sleep(self.chance.choice((0, 1, 70)))
        await self.during(20)

    async def step_killed_at_a_point(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            await self.supervise()
            self.driver.fatal = self.chance.choice(POINTS), self.chance.choice((1, 1, 2, 5))
            await self.during(30)

    async def step_asleep(self) -> None:
        """The driver is suspended, for a while or an hour; its log is not, and records come."""
        driver, seconds = self.driver, self.chance.choice((40, 100, HOUR_S))
        await self.at_a_switch(driver, partial(driver.sleep, seconds))
        await self.writing(60)
        while any(actor.asleep for actor in driver.actors if actor.alive):
            await asyncio.sleep(30)
            await self.write(self.chance.choice("ab"), 0)
        await self.during(30)

    async def step_two_drivers(self) -> None:
        """A second driver is started beside the first, which may be asleep meanwhile: one of them is fenced."""
        if self.chance.random() < 0.5:  # it is still starting
            self.driver.kill()
            self.driver = Driver(self, "driver")
        first, seconds = self.driver, self.chance.choice((0, 5, 100, 300))
        self.rivals += 1

        def begin() -> None:
            first.sleep(seconds)
            self.others.append(first)
            self.driver = Driver(self, "second driver")

        await self.at_a_switch(first, begin)
        await self.during(self.chance.choice((5, 60)))
        if self.chance.random() < 0.5:
            for zombie in self.others:
                zombie.kill()
        await self.during(400 if any(isinstance(each, Driver) for each in self.others) else 20)

    async def step_stopped(self) -> None:
        """The pipeline is stopped, and started again later."""
        self.driver.stopping = True
        await self.writing(self.chance.choice((10, 60)))
        await self.until(lambda: not self.driver.alive, 600, "the pipeline stops")
        await self.during(20)

    async def step_broker_killed(self) -> None:
        task = self.hub.task(self.writing(40))
        await asyncio.sleep(self.chance.uniform(0, 20))
        await self.killed(self.chance.choice((0, 5, 50, 200)))
        await task
        await self.during(30)

    async def step_power_cut(self) -> None:
        """The machine loses its power: broker, driver and whatever else runs on it."""
        cut = self.loop.create_future()

        def begin() -> None:
            self.kill_all()
            self.machine.power_cut()
            cut.set_result(None)

        waiting = self.hub.task(self.at_a_switch(self.driver, begin))
        await asyncio.wait({cut, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not cut.done():
            begin()
        await self.power_cut(self.chance.choice((0, 60)))
        await waiting
        await self.during(30)

    async def step_clock_step(self) -> None:
        """The clock is set; an hour at most from where it was in the beginning."""
        away_s = (self.clock.now_ms() - self.now_us() // 1000) / 1000
        self.clock.step(self.chance.choice((-1, 1)) * self.chance.choice((30, 600, 3000)) - away_s)
        await self.during(60)

    async def step_slow_engine(self) -> None:
        """Batches take longer than inputs may be silent, here or there."""
        chance, steps = self.chance, self.chance.sample(("planning", "planned", "computing", "closing"), 2)
        self.moods.slow = lambda step: chance.choice(SLOW_S) if step in steps else 0.0
        await self.during(self.chance.choice((100, 300)))
        self.moods.slow = lambda _: 0.0

    async def step_slow_log(self) -> None:
        self.network.slow = True
        await self.during(100)
        self.network.slow = False

    async def step_failing_tasks(self) -> None:
        chance = self.chance
        self.moods.fails = lambda: chance.random() < 0.3
        self.moods.twice = lambda: chance.random() < 0.5
        await self.during(60)
        self.moods.fails = self.moods.twice = lambda: False

    async def step_slow_sink(self) -> None:
        """A sink does not get on: a view that keeps its pace waits."""
        self.sink_s = 200.0
        await self.during(300)

    def rebuild(self, *, back: bool = False, accept_loss: bool = False) -> Process | None:
        """Begins a rebuild of one of the views."""
        views = [name for name, shown in self.shown.items() if shown.seen and not shown.view.append]
        if not views:
            return None
        view = self.chance.choice(views)
        self.rivals += 1

        def work() -> Result:
            made = Rebuild(self.app, self.settings, view, engine=Scripted(self.moods))
            return made.back() if back else made.run(accept_loss=accept_loss)

        process = Process(self.hub, "rebuild", work)
        self.others.append(process)
        return process

    async def step_rebuild(self) -> None:
        process = self.rebuild(accept_loss=self.lossy)
        await self.during(self.chance.choice((5, 60)))
        if process is not None:
            await self.until(lambda: not process.alive, 2 * HOUR_S, "a rebuild ends")
        await self.during(150)

    async def step_rebuild_killed(self) -> None:
        """A rebuild dies at a point of its swap, or somewhere; drivers that wait for it continue."""
        process = self.rebuild(accept_loss=self.lossy)
        if process is None:
            return
        if self.chance.random() < 0.7:
            process.fatal = (
                self.chance.choice((*SWAP_POINTS, "all is produced")),
                self.chance.choice((1, 1, 2)),
            )
            await self.during(60)
        else:
            await self.at_a_switch(process, process.kill)
        await self.during(30)
        await self.until(lambda: not process.alive, 2 * HOUR_S, "a rebuild ends")
        await self.during(self.chance.choice((20, 150)))

    async def step_back(self) -> None:
        process = self.rebuild(back=True)
        await self.during(60)
        if process is not None:
            await self.until(lambda: not process.alive, 2 * HOUR_S, "a rebuild ends")
        await self.during(150)

    async def step_waited(self) -> None:
        """A client writes, and waits until a view includes it: the answer is where a reader finds the rows."""
        offset = await self.write("a", 0)
        views = [name for name, shown in self.shown.items() if shown.seen]
        if offset is None or not views:
            return
        view, position = self.chance.choice(views), Position({"a": {0: offset + 1}})
        reader = Process(self.hub, "reader", partial(wait, view, position, 300, log=ADDRESS))
        if self.chance.random() < 0.3:
            self.driver.kill()
        await self.during(30)
        await self.until(lambda: not reader.alive, 600, "a wait ends")
        self.judge(reader)
        await self.look()
        if reader.error is None:
            self.shown[view].check_wait(position, reader.main.result)

    async def step_days(self) -> None:
        """Results and rows are compacted; a driver that looks for so long costs too much, so that it is stopped."""
        self.driver.stopping = True
        await self.until(lambda: not self.driver.alive, 600, "the pipeline stops")
        for _ in range(3):
            await asyncio.sleep(4 * HOUR_S)
            await self.write("a", 0)
        await self.during(30)

    async def step_more_partitions(self) -> None:
        count = self.topics()["a"] + 1
        wanted = [{"name": "a", "count": count, "assignments": None}]
        await self.client.call("CreatePartitions", 1, topics=wanted, timeout_ms=1000, validate_only=False)
        await self.during(100)

    async def step_records_deleted(self) -> None:
        """Records that all views have read are deleted: a rebuild is refused, unless that is accepted."""
        read = min(
            (shown.seen.inputs.get("a", {}).get(0, 0) if shown.seen else 0 for shown in self.shown.values()),
            default=0,
        )
        if not read:
            return
        self.lossy = True
        wanted = [{"name": "a", "partitions": [{"partition_index": 0, "offset": read}]}]
        await self.client.call("DeleteRecords", 2, topics=wanted, timeout_ms=1000)
        process = self.rebuild()
        await self.during(60)
        if process is not None:
            await self.until(lambda: not process.alive, 2 * HOUR_S, "a rebuild ends")
            if process.error is None:
                raise Wrong("a rebuild from a log that lacks records was not refused")
        await self.step_rebuild()

    async def step_end(self) -> None:
        """The faults are over: with a driver that runs, every view catches up."""
        for zombie in self.others:
            zombie.kill()
        for topic, count in self.topics().items():
            for number in range(count):
                await self.write(topic, number)
        limit = self.loop.time() + CATCH_UP_S
        while True:
            await asyncio.sleep(30)
            await self.supervise()
            await self.look()
            if self.is_caught_up():
                break
            if self.loop.time() > limit:
                seen = {name: shown.seen and shown.seen.inputs for name, shown in self.shown.items()}
                raise Wrong(f"views do not catch up: {seen}")
        self.driver.stopping = True
        await self.until(lambda: not self.driver.alive, 600, "the pipeline stops")
        self.judge(self.driver)
        await self.look()
