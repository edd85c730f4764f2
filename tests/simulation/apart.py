"""Apart: what is to be the same in every run, in a process whose sets are gone through in the same order in every run."""

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

__all__ = ["gathered", "processes"]


@contextmanager
def processes(count: int | None = None) -> Iterator[ProcessPoolExecutor]:
    """So many processes, one for each core if not said, in which texts have the same hashes in every run."""
    with (
        mock.patch.dict(os.environ, PYTHONHASHSEED="0"),
        ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        yield pool


def gathered(asked: Iterable[list[str]], each: int, lives: int) -> list[str]:
    """What went wrong in lives that other processes go through, so many at once; the file CRASH_PROGRESS says how far they are."""
    wrong: list[str] = []
    for count, found in enumerate(asked, 1):
        wrong += found
        if "CRASH_PROGRESS" in os.environ:
            text = f"{min(count * each, lives)} of {lives} lives, {len(wrong)} failed"
            Path(os.environ["CRASH_PROGRESS"]).write_text("\n".join([*wrong, text]))
    return wrong
