"""A cluster whose machines do not share the folder of checkpoints is refused before anything starts."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from headwater.errors import UsageError
from headwater.pipeline.spark.shared_folder import probe

pytestmark = pytest.mark.spark


def test_a_shared_folder_passes_and_is_left_clean(spark, tmp_path):
    probe(spark, tmp_path / "checkpoints", "spark://test")
    assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("elsewhere", ["missing", "another", "unwritable"])
def test_a_folder_that_workers_do_not_share_is_refused(spark, tmp_path, elsewhere):
    """Workers look below another root: there is nothing, or a folder of that name that is their own, or they can only read."""
    root = tmp_path / "other machine"
    folder = tmp_path / "checkpoints"

    def seen_as(path: Path) -> Path:
        there = root / path.name
        if elsewhere != "missing":
            there.mkdir(parents=True, exist_ok=True)
        if elsewhere == "another":
            (there / "driver").write_text("the text of another driver")
        if elsewhere == "unwritable":  # it reads the same, and what it writes is not seen elsewhere
            (there / "driver").write_text(path.name.removeprefix(".probe-"))
        return there

    with pytest.raises(UsageError, match=r"workers of spark://test do not share.*set store = "):
        probe(spark, folder, "spark://test", seen_as)
    assert list(folder.iterdir()) == []


def test_workers_in_processes_of_their_own_share_it(tmp_path):
    """Spark's local cluster: a master, two workers and their executors."""
    program = """
        import sys
        from pathlib import Path
        from headwater.config import Settings
        from headwater.pipeline.spark import session
        from headwater.pipeline.spark.shared_folder import probe

        folder = Path(sys.argv[1])
        spark = session.start(Settings(log=f"embedded:{folder}", spark="local-cluster[2,1,1024]"))
        probe(spark, folder / "checkpoints", "local-cluster")
        print("shared")
        spark.stop()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        capture_output=True, text=True, timeout=400, check=False, env=os.environ,
    )  # fmt: skip
    assert done.stdout.strip().endswith("shared"), done.stderr
