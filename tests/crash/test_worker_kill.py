"""kill -9 of broker and workers while handlers write in their transactions: nothing is lost, and nothing is doubled.

CRASH_ROUNDS sets the number of kills, CRASH_SEED the first seed; each seed is a life of ten kills.
"""

import json
import os
from pathlib import Path

import pytest

from crash.worker_kills import KILLS_PER_LIFE, live

KILLS = int(os.environ.get("CRASH_ROUNDS", "4"))
FIRST_SEED = int(os.environ.get("CRASH_SEED", "0"))
TALLY = os.environ.get("CRASH_TALLY")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + max(KILLS // KILLS_PER_LIFE, 1)))
def test_each_message_has_its_outputs_once_whatever_is_killed(seed, tmp_path):
    lived = live(seed, tmp_path, min(KILLS, KILLS_PER_LIFE))

    if TALLY:
        line = {"seed": seed, "outcome": "failed" if lived.faults else "passed"}
        line |= {"kills": sum(lived.kills.values()), "messages": lived.messages}
        with Path(TALLY).open("a") as tally:
            tally.write(json.dumps(line | {"faults": lived.faults} if lived.faults else line) + "\n")
    assert lived.faults == []
