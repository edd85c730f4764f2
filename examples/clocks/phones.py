"""Seven telephones, each with a clock that is wrong in its own way, and the truth that only we know.

python examples/clocks/phones.py      sends two hours of taps, ending now, to the log of your settings
"""

import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import headwater as hw

MINUTE = timedelta(minutes=1)
LENGTH = 120 * MINUTE
UPLOAD_EVERY = 2 * MINUTE


class Sent(NamedTuple):
    """One tap as it was received, and when it really happened."""

    phone: str
    n: int
    occurred: datetime
    sent: datetime
    received: datetime
    truth: datetime

    def json(self) -> bytes:
        times = {name: getattr(self, name).isoformat() for name in ("occurred", "sent", "received")}
        return json.dumps({"phone": self.phone, "n": self.n} | times).encode()


CLOCKS: dict[str, Callable[[timedelta], timedelta]] = {
    "right": lambda _: timedelta(0),
    "slow": lambda _: timedelta(minutes=-7),
    "fast": lambda _: timedelta(hours=2),
    "last-year": lambda _: timedelta(days=-365),
    "drifting": lambda at: timedelta(minutes=3) + at * 50e-6,
    "set-right": lambda at: timedelta(hours=-5) if at < LENGTH / 2 else timedelta(0),
    "one-bad-upload": lambda _: timedelta(minutes=20),
}
"""How far ahead each clock is, by the time since the beginning."""
OFFLINE = 40 * MINUTE, 75 * MINUTE
"""When the slow one sits in a tunnel, and keeps its taps until it is out."""
BAD_UPLOAD = 30
"""In it the time of sending is nonsense."""


def taps(begin: datetime, seed: int = 1) -> list[Sent]:
    """All taps, in the order in which they are received."""
    rng = random.Random(seed)  # noqa: S311
    found = [tap for phone in CLOCKS for tap in _of(phone, begin, rng)]
    return sorted(found, key=lambda tap: (tap.received, tap.phone, tap.n))


def _of(phone: str, begin: datetime, rng: random.Random) -> Iterator[Sent]:
    ahead = CLOCKS[phone]
    happened = sorted(rng.random() * LENGTH for _ in range(200))
    upload, number = UPLOAD_EVERY, 0
    while number < len(happened):
        offline = phone == "slow" and OFFLINE[0] < upload < OFFLINE[1]
        under_way = timedelta(seconds=30 if rng.random() < 0.1 else rng.uniform(0.05, 2))
        wrong = (
            timedelta(hours=-3)
            if phone == "one-bad-upload" and upload == BAD_UPLOAD * UPLOAD_EVERY
            else 0 * MINUTE
        )
        while not offline and number < len(happened) and happened[number] <= upload:
            at = happened[number]
            yield Sent(
                phone,
                number,
                # the clock is set after an upload, so a tap and its sending are by the same one
                begin + at + ahead(upload if phone == "set-right" else at),
                begin + upload + ahead(upload) + wrong,
                begin + upload + under_way,
                begin + at,
            )
            number += 1
        upload += UPLOAD_EVERY


def main() -> None:
    made = taps(datetime.now(UTC) - LENGTH - UPLOAD_EVERY)
    with hw.Writer() as writer:
        writer.put("taps", ((tap.phone, tap.json()) for tap in made))


if __name__ == "__main__":
    main()
