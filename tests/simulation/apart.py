"""Apart: what is to be the same in every run, in a process whose sets are gone through in the same order in every run."""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from unittest import mock

__all__ = ["processes"]


@contextmanager
def processes(count: int | None = None) -> Iterator[ProcessPoolExecutor]:
    """So many processes, one for each core if not said, in which texts have the same hashes in every run."""
    with (
        mock.patch.dict(os.environ, PYTHONHASHSEED="0"),
        ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        yield pool
