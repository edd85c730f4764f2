"""Results of views written by hand, as a driver writes them: in one transaction with their records."""

import uuid

import msgspec
from confluent_kafka import Producer

from headwater.access import Log
from headwater.client.client import Client, producer
from headwater.result import Result, topic


class Driver:
    """One run of a view; its results take turns in a few keys, as those of a real one do."""

    def __init__(self, log: Log, view: str, run: str = "run-1", partitions: int = 1) -> None:
        self.view = view
        self.run = run
        self.batch = -1
        self.outputs: dict[int, int] = {}
        self._client = Client(log)
        self._client.ensure_topics([view], partitions, {"cleanup.policy": "compact"})
        self._client.ensure_topics([topic(view)], 1, {"cleanup.policy": "compact"})
        settings = {"transactional.id": f"{view}/{run}/{uuid.uuid4().hex}", "message.timeout.ms": 30_000}
        self.producer: Producer = producer(log, **settings)
        self.producer.init_transactions(30)

    def begin(self, inputs: dict[str, dict[int, int]], rows: dict[str, bytes] | None = None, **more) -> None:
        """A batch in an open transaction: no reader may see it yet."""
        self.producer.begin_transaction()
        self.batch += 1

        def note(error, message):
            assert error is None
            self.outputs[message.partition()] = message.offset() + 1

        for key, value in (rows or {}).items():
            self.producer.produce(self.view, value, key, on_delivery=note)
        assert self.producer.flush(30) == 0
        result = Result(
            run=self.run, batch=self.batch, inputs=inputs, outputs=dict(self.outputs), partitions=1
        )
        value = msgspec.json.encode(msgspec.structs.asdict(result) | more)
        self.producer.produce(topic(self.view), value, f"{self.run}#{self.batch % 64}")
        assert self.producer.flush(30) == 0

    def commit(self) -> None:
        self.producer.commit_transaction(30)

    def abort(self) -> None:
        self.producer.abort_transaction(30)

    def publish(
        self, inputs: dict[str, dict[int, int]], rows: dict[str, bytes] | None = None, **more
    ) -> None:
        self.begin(inputs, rows, **more)
        self.commit()
