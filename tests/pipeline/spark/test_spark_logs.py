"""What Spark's processes print, and what Spark logs, take a bounded part of the disk."""

import subprocess
import sys
import threading

import pytest

from headwater.child_log import ChildLog
from headwater.pipeline.spark import session
from support.servers import wait_until

LOG_BYTES_MAX = 10 * 1024 * 1024 + 200_000
"""Log4j closes a file after the record with which it has become too large."""
PRINTS = "import sys\nfor number in range(4000): print(f'{number:04} ' + 'x' * 95, flush=number % 100 == 99)\nsys.stdin.read()"
"""About 400 KB, and then it waits to be ended."""


def test_what_a_process_prints_is_rotated_while_it_lives_and_no_longer(tmp_path):
    printed = ChildLog(tmp_path / "spark.out", bytes_max=20_000, older=2)
    with (
        printed.open("Spark", 0) as file,
        subprocess.Popen([sys.executable, "-c", PRINTS], stdin=subprocess.PIPE, stdout=file) as process,
    ):
        watching = threading.Thread(target=session._rotate, args=(printed, process, 0.001))
        watching.start()
        wait_until(lambda: "3999 " in newest(tmp_path), what="the last line")
        wait_until(lambda: printed.path.stat().st_size <= 20_000, what="the last cut")
        process.stdin.close()
        watching.join(30)
        assert not watching.is_alive()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spark.out", "spark.out.1", "spark.out.2"]


def newest(folder) -> str:
    files = sorted(folder.glob("spark.out*"))
    return "".join(file.read_text() for file in files[:2])


@pytest.mark.spark
def test_the_log_of_spark_itself_is_two_files_of_ten_megabytes(spark, spark_folder):
    log, _ = session.logs(spark_folder)
    logger = spark._jvm.org.apache.logging.log4j.LogManager.getLogger("headwater.test")
    line = "x" * 100_000
    for _ in range(250):
        logger.error(line)
    files = sorted(log.parent.glob(f"{log.name}*"))
    assert files == [log, log.with_name(f"{log.name}.1")]
    assert all(file.stat().st_size <= LOG_BYTES_MAX for file in files)
