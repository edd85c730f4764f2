"""Web servers that take a request a second, for ever.

python examples/redeploy/traffic.py      sends to the log of your settings until Ctrl-C
"""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import headwater as hw

HOSTS = ("web-1", "web-2", "web-3")


def requests(begin: datetime, seconds: int) -> Iterator[tuple[str, bytes]]:
    """One a second, as key and value."""
    for second in range(seconds):
        host = HOSTS[second % len(HOSTS)]
        at = (begin + timedelta(seconds=second)).isoformat()
        yield host, json.dumps({"host": host, "path": "/", "at": at}).encode()


def main() -> None:
    with hw.Writer() as writer:
        while True:
            writer.put("requests", requests(datetime.now(UTC), 1))
            time.sleep(1)


if __name__ == "__main__":
    main()
