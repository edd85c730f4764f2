"""Asks for thumbnails of pictures: of one that someone waits for, or of a whole archive.

python examples/thumbnails/upload.py --log 127.0.0.1:9092 archive/*.ppm --archive
python examples/thumbnails/upload.py --log 127.0.0.1:9092 portrait.ppm
"""

import argparse
import json
from pathlib import Path

import headwater as hw

NOW, ARCHIVE = 9, 0


def upload(log: str, files: list[str], priority: int) -> None:
    """Returns when the log has taken over the requests."""
    with hw.Writer(log) as writer:
        for file in files:
            path = str(Path(file).resolve())
            writer.send("pictures", json.dumps({"file": path}).encode(), key=path, priority=priority)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--log", default="127.0.0.1:9092")
    parser.add_argument("--archive", action="store_true", help="nobody waits for these")
    given = parser.parse_args()
    upload(given.log, given.files, ARCHIVE if given.archive else NOW)
