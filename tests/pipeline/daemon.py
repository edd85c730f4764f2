"""The daemon that forks Spark's Python workers, with everything imported that they need: each of dozens would take half a second for it.

Spark imports nothing before the fork, since libraries start threads, which a fork leaves in any state. Here they start none.
"""

import importlib
import os
from pathlib import Path

from pyspark.daemon import manager

WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
MODULES = ("pandas", "pyarrow.compute", "pyspark.worker", "headwater.pipeline.operator.shell")

if __name__ == "__main__":
    os.environ |= WITHOUT_THREADS
    for name in MODULES:
        importlib.import_module(name)
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, threads
    manager()
