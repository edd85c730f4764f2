"""A transactional producer whose every request is its own."""

from typing import TYPE_CHECKING

from clients.answers import named
from headwater.record import TRANSACTIONAL, Record, encode_batch
from support.servers import wait_until

if TYPE_CHECKING:
    from clients.onelog import Log


class Writer:
    """A transactional producer whose every request is its own."""

    def __init__(self, log: "Log", name: str, timeout_ms: int) -> None:
        self._log, self.name, self._timeout_ms = log, name, timeout_ms
        self.id, self.epoch = -1, -1
        self._sequences: dict[tuple[str, int], int] = {}
        log.coordinator(name, 1)

    def init(self, *, version: int = 4, current: bool = False) -> str:
        """Asks for an epoch: as a new incarnation, or as the producer that has the current one."""
        said: dict[str, int] = {"producer_id": self.id, "producer_epoch": self.epoch} if current else {}

        def ask() -> str:
            answer = self._log.call(
                "InitProducerId",
                version,
                transactional_id=self.name,
                transaction_timeout_ms=self._timeout_ms,
                **said,
            )
            if answer.error_code == 0:
                self.id, self.epoch = answer.producer_id, answer.producer_epoch
                self._sequences.clear()
            return named(answer.error_code)

        return self._log.settled(ask)

    def add(self, *topics: str, version: int = 3, partition: int = 0) -> list[str]:
        answers: list[str] = []

        def ask() -> str:
            nonlocal answers
            answer = self._log.call(
                "AddPartitionsToTxn",
                version,
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self.id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[{"name": topic, "partitions": [partition]} for topic in topics],
            )
            found = {
                t.name: named(t.results_by_partition[0].partition_error_code)
                for t in answer.results_by_topic_v3_and_below
            }
            answers = [found[topic] for topic in topics]
            return answers[0]

        self._log.settled(ask)
        return answers

    def produce(
        self, topic: str, *records: Record, partition: int = 0, sequence: int | None = None
    ) -> tuple[str, int]:
        first = self._sequences.get((topic, partition), 0) if sequence is None else sequence
        data = encode_batch(
            list(records),
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=first,
            attributes=TRANSACTIONAL,
        )
        offset = -1

        def ask() -> str:
            nonlocal offset
            error, offset = self._log.produce_raw(topic, data, partition, transaction=self.name)
            return error

        error = self._log.settled(ask)
        if error == "NONE":
            self._sequences[topic, partition] = first + len(records)
        return error, offset

    def end(self, *, commit: bool = True, version: int = 3) -> str:
        def ask() -> str:
            answer = self._log.call(
                "EndTxn",
                version,
                transactional_id=self.name,
                producer_id=self.id,
                producer_epoch=self.epoch,
                committed=commit,
            )
            return named(answer.error_code)

        return self._log.settled(ask)

    def transaction(self, topic: str, *records: Record, commit: bool = True) -> None:
        """A whole transaction, until readers see its end."""
        end = self._log.span(topic)[1] + len(records) + 1
        steps = [*self.add(topic), self.produce(topic, *records)[0], self.end(commit=commit)]
        assert steps == ["NONE"] * 3, steps
        wait_until(
            lambda: self._log.offset(topic, -1, committed=True)[2] == end, what=f"the marker in {topic}"
        )

    def add_offsets(self, group: str, version: int = 3) -> str:
        def ask() -> str:
            answer = self._log.call(
                "AddOffsetsToTxn",
                version,
                transactional_id=self.name,
                producer_id=self.id,
                producer_epoch=self.epoch,
                group_id=group,
            )
            return named(answer.error_code)

        return self._log.settled(ask)

    def commit_offsets(self, group: str, topic: str, offset: int, **more: object) -> str:
        part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        answer = self._log.call(
            "TxnOffsetCommit",
            3,
            transactional_id=self.name,
            group_id=group,
            producer_id=self.id,
            producer_epoch=self.epoch,
            topics=[{"name": topic, "partitions": [part]}],
            **more,
        )
        return named(answer.topics[0].partitions[0].error_code)

    def state(self) -> tuple:
        found = self._log.call("DescribeTransactions", 0, transactional_ids=[self.name]).transaction_states[0]
        topics = [(topic.topic, topic.partitions) for topic in found.topics]
        return named(found.error_code), found.transaction_state, topics
