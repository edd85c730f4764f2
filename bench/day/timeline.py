"""Timeline: what happens to the installation, and when. Each act has the same faults at the same moments.

A step begins at its moment, or when the one before it is done; how long it takes depends on the machine, and no check does.
"""

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from headwater.follow.results import newest
from installation import APP, Installation, wait_until
from plan import Plan

REBUILT = "revenue"
PAUSED = "revenue.sqlite"


@dataclass(frozen=True)
class Step:
    """``at`` is a share of the act."""

    at: float
    what: str
    do: Callable[[Installation, int], None]


@dataclass
class Timeline:
    """Runs the steps of all acts in order. ``said`` has a line for each that was done."""

    installation: Installation
    plan: Plan
    elapsed: Callable[[], float]
    said: list[str] = field(default_factory=list)
    last: str = "started"

    def run(self) -> None:
        pause = threading.Event()
        for act in range(self.plan.acts):
            for step in STEPS:
                due = (act + step.at) * self.plan.act_s
                while self.elapsed() < due:
                    self.installation.check()
                    pause.wait(min(1.0, max(0.0, due - self.elapsed())))
                began = self.elapsed()
                step.do(self.installation, act)
                self.last = step.what
                self.said.append(
                    f"{began / 60:5.1f} min  {step.what}: done after {self.elapsed() - began:.0f} s"
                )
                print(self.said[-1], flush=True)


def _pause(installation: Installation, _: int) -> None:
    _succeed(installation, "sink", "pause", PAUSED)


def _resume(installation: Installation, _: int) -> None:
    _succeed(installation, "sink", "resume", PAUSED)


def _suspend(installation: Installation, _: int) -> None:
    installation.suspend("pipeline", signal.SIGSTOP)


def _continue(installation: Installation, _: int) -> None:
    installation.suspend("pipeline", signal.SIGCONT)


def _rebuild(installation: Installation, _: int) -> None:
    """Of a view that has begun: on a busy machine its first batch may come late."""
    wait_until(lambda: newest(installation.client, REBUILT), f"a result of {REBUILT}", installation.check)
    _succeed(installation, "view", "rebuild", REBUILT, str(APP))


def _all(installation: Installation, act: int) -> None:
    """Cleanly in the first act, by kill -9 in the others."""
    if act == 0:
        installation.stop()
    else:
        installation.kill()
    installation.start()


def _kill(part: str) -> Callable[[Installation, int], None]:
    return lambda installation, _: installation.restart(part, signal.SIGKILL)


def _end(part: str) -> Callable[[Installation, int], None]:
    return lambda installation, _: installation.restart(part, signal.SIGTERM)


def _succeed(installation: Installation, *arguments: str) -> None:
    done = installation.command(*arguments)
    if done.returncode:
        raise RuntimeError(
            f"headwater {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}"
        )


STEPS = (
    Step(0.05, f"sink {PAUSED} paused", _pause),
    Step(0.10, "broker killed", _kill("broker")),
    Step(0.20, f"sink {PAUSED} resumed", _resume),
    Step(0.22, "Spark's driver suspended", _suspend),
    Step(0.34, "Spark's driver continued", _continue),
    Step(0.40, "sinks killed", _kill("sinks")),
    Step(0.44, f"view {REBUILT} rebuilt under load", _rebuild),
    Step(0.58, "console killed", _kill("console")),
    Step(0.60, "capture killed", _kill("capture-warehouse")),
    Step(0.64, "pipeline ended and started", _end("pipeline")),
    Step(0.72, "broker ended and started", _end("broker")),
    Step(0.78, "pipeline killed", _kill("pipeline")),
    Step(0.88, "everything ended and started", _all),
)
