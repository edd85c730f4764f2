"""Readers of stores that never look away: what was seen once must not become older."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping

Read = Callable[[], Mapping[str, int]]
PAUSE_S = 0.1


class Watcher:
    """Reads the rows of stores, each a number that only grows, until the end.

    A store that is away is read later.
    """

    def __init__(self, stores: Mapping[str, Read]) -> None:
        self._stores = stores
        self._newest: dict[tuple[str, str], int] = {}
        self.looks: Counter[str] = Counter()
        self.faults: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(120)

    def look(self, store: str, rows: Mapping[str, int]) -> None:
        """Compares what a store shows with all that it has shown; a row that is gone is older than any."""
        self.looks[store] += 1
        known = {key: number for (name, key), number in self._newest.items() if name == store}
        for key, number in known.items():
            if rows.get(key, -1) < number:
                self.faults.append(f"{store} has shown {key} as {number}, and then as {rows.get(key)}")
        self._newest |= {(store, key): max(number, known.get(key, -1)) for key, number in rows.items()}

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            for store, read in self._stores.items():
                try:
                    rows = read()
                except Exception:  # noqa: BLE001,S112  killed, or not made yet
                    continue
                self.look(store, rows)
