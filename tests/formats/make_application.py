"""Makes the data folder of an application with the code that PYTHONPATH names, as a fixture for later code: ``python tests/formats/make_application.py NAME``.

Writes ``tests/formats/application/NAME.tar.gz``: the application's folder after a stop, without copies and logs. Keep the folders of all
formats that were ever released; for the code of another commit run this file with that commit's ``src`` in PYTHONPATH.
"""

import random
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from life import Life  # noqa: E402

LEFT_OUT = {"artifacts", "copies", "logs", "run", "spark-warehouse"}


def live(life: Life) -> None:
    """Two batches of each view, a snapshot and changes of a database, a sink and tables at the end of their topics."""
    life.begin()
    with life.broker():
        for part in (range(60), range(60, 90)):
            life.send(part)
            assert not (said := life.views()), said
        assert not (said := life.capture("INSERT INTO item VALUES (1, 'shoe', 100), (2, 'hat', 50)")), said
        assert not (said := life.capture("UPDATE item SET cents = 120 WHERE id = 1")), said
        assert not (said := life.sink()), said
        life.tables()


def pack(folder: Path, name: str) -> None:
    with tarfile.open(HERE / "application" / f"{name}.tar.gz", "w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder)
            if path.is_file() and not LEFT_OUT & set(inside.parts):
                archive.add(path, str(inside))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        made = Life(Path(folder) / "life", random.randrange(10_000, 30_000))
        live(made)
        pack(made.folder, sys.argv[1])
