"""LogWriter: the records, notices and state of a capture, in common transactions of the log."""

import threading
from collections.abc import Callable, Sequence

import msgspec

from headwater.access import Log
from headwater.capture.loop.publisher import Publisher
from headwater.capture.messages import Notice
from headwater.capture.source import Columns, Part, Record
from headwater.capture.state import State, last_state, state_record
from headwater.client.client import Client
from headwater.client.topic_defaults import STATE
from headwater.clock import Clock

__all__ = ["Batch", "LogWriter"]

COMMIT_RECORDS = 50_000
COMMIT_S = 0.5
"""A transaction of the log takes further transactions of the database for this time, if they follow at
once."""
FULL_RECORDS = 1_000
"""A part with fewer records means that the database has no more at the moment: it is committed at once."""
HEARTBEAT_S = 5.0
"""How often the position is committed without changes of captured tables, so that the database can drop its
log."""
FOREVER = {"retention.ms": "-1"}


class Batch:
    """The content of the open transaction, and the position of the database after it."""

    def __init__(self, now: float) -> None:
        self.reset(now)

    def reset(self, now: float) -> None:
        self.begun = now
        self.open = False
        self.rows = 0
        self.at_ms = 0
        self.position: str | None = None
        self.whole = True
        """Whether it has whole transactions of the database only."""


class LogWriter:
    """Writes for one capture; the loop owns it. `state` is the last state that it has committed or read."""

    def __init__(
        self,
        name: str,
        log: Log,
        client: Client,
        *,
        partitions: int,
        config: dict[str, str] | None,
        clock: Clock,
        stopping: threading.Event,
        on_state: Callable[[State], None] | None,
    ) -> None:
        self.state = State()
        self.notices: list[Notice] = []
        """Notices that are committed with the next state."""
        self.batch = Batch(clock.monotonic())
        self._name = name
        self._log = log
        self._client = client
        self._partitions = partitions
        self._config = FOREVER if config is None else config
        self._clock = clock
        self._on_state = on_state
        self._topics: set[str] = set()
        self._publisher = Publisher(log, name, stopping)

    def claim(self) -> State:
        """Fences earlier writers of the capture, and reads its state."""
        self._client.ensure_topics([f"{self._name}.capture"], 1, STATE)
        own = ("schema", "control", "notifications")
        self._client.ensure_topics([f"{self._name}.{topic}" for topic in own], 1, FOREVER)
        self._publisher.claim()
        self.state = last_state(self._log, self._name) or State()
        self._topics = set(self._client.partitions())
        self.notices = []
        return self.state

    def claim_again(self) -> None:
        """Begins again after an abandoned transaction, with the notices."""
        self._publisher.claim()
        self.state = last_state(self._log, self._name) or State()

    def begin(self) -> None:
        """Begins the transaction of the batch, if it has not begun."""
        if not self.batch.open:
            self._publisher.begin()
            self.batch.open = True

    def take(self, part: Part) -> bool:
        """Adds a part to the batch; returns whether the batch is to be committed."""
        batch = self.batch
        if part.records:
            if not batch.rows:
                batch.begun = self._clock.monotonic()
            self.begin()
            self._publish(part.records)
        if part.position is not None and part.position != self.state.position:
            batch.position = part.position
        batch.whole = part.position is not None or (batch.whole and not part.records)
        if batch.position is None or not batch.whole:
            return False
        age = self._clock.monotonic() - batch.begun
        if batch.rows:
            return len(part.records) < FULL_RECORDS or batch.rows >= COMMIT_RECORDS or age >= COMMIT_S
        return age >= HEARTBEAT_S or self.state.position is None

    def commit(self, state: State) -> None:
        """Commits the open transaction with the notices and the state."""
        key, topic = self._name.encode(), f"{self._name}.notifications"
        notices = [Record(topic, key, msgspec.json.encode(notice), notice.at_ms) for notice in self.notices]
        self._publisher.send([*notices, state_record(self._name, state)])
        self._publisher.commit()
        self.state, self.notices = state, []

    def save(self, state: State) -> None:
        """Commits the notices and the state in a transaction of their own."""
        self._publisher.begin()
        self.commit(state)
        self.show()

    def show(self) -> None:
        """Reports the committed state to the caller."""
        if self._on_state is not None:
            self._on_state(self.state)

    def flush(self) -> None:
        """Returns when all records are in the log, committed or not."""
        self._publisher.flush()

    def abandon(self) -> None:
        """Aborts the open transaction, if the log answers; never raises."""
        self._publisher.abandon()

    def close(self) -> None:
        """Aborts the open transaction, and closes the connections."""
        self._publisher.close()

    def is_compacted(self, topic: str) -> bool:
        """Whether a topic is compacted; it is created if necessary."""
        self._ensure(topic)
        return "compact" in self._client.config(topic)["cleanup.policy"]

    def _publish(self, records: Sequence[Record]) -> None:
        topics = {records.topic} if isinstance(records, Columns) else {record.topic for record in records}
        for topic in topics:
            self._ensure(topic)
        self._publisher.send(records)
        self.batch.rows += len(records)
        self.batch.at_ms = records[-1].committed_ms or self.batch.at_ms

    def _ensure(self, topic: str) -> None:
        if topic not in self._topics:
            self._client.ensure_topics([topic], self._partitions, self._config)
            self._topics.add(topic)
