"""Positions: claims and offsets of a sink as documents of an OpenSearch index.

A document is written only if it is still the one that was read: OpenSearch compares its sequence number.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from headwater.errors import UnavailableError
from headwater.sink.claims import NOTHING, PartitionState, superseded

__all__ = ["CONFLICT", "COUNT", "FORMAT", "INDEX", "RESETTING", "PositionDocument", "Positions"]

INDEX = "headwater-positions"
CONFLICT = 409
PARTITIONS_MAX = 10_000
RESETTING = -1
"""In the place of a partition: its claim is 1 while a reset is in progress."""
COUNT = -2
"""In the place of a partition: its claim is the number of partitions of the topic; 0 when that is not
known."""
FORMAT = -3
"""In the place of a partition: its claim is the format of these documents."""


class PositionDocument(msgspec.Struct, frozen=True):
    """The document of one partition, as it was read or written."""

    state: PartitionState
    sequence: tuple[int, int] | None
    """Sequence number and primary term, which change with every write; None if there is no such document."""


class Positions:
    """The documents of one sink. Documents are read by id, and so are never stale."""

    def __init__(self, client: Any, sink: str, address: str) -> None:
        self._client = client
        self._sink = sink
        self._address = address

    def read(self, numbers: Collection[int]) -> dict[int, PositionDocument]:
        if not numbers:
            return {}
        ids = [self._id(number) for number in numbers]
        answer = self._client.mget(body={"ids": ids}, index=INDEX)
        documents = {}
        for number, document in zip(numbers, answer["docs"], strict=True):
            row = document.get("_source") or {"claim": 0, "offset": NOTHING}
            sequence = (document["_seq_no"], document["_primary_term"]) if document.get("found") else None
            documents[number] = PositionDocument(PartitionState(row["claim"], row["offset"]), sequence)
        return documents

    def write(
        self, states: Mapping[int, PartitionState], read: Mapping[int, PositionDocument]
    ) -> dict[int, PositionDocument]:
        """Writes states.

        Superseded if another process has written one of these documents since it was read.
        """
        body = b""
        for number, state in states.items():
            about: dict[str, Any] = {"_id": self._id(number)}
            sequence = read[number].sequence
            if sequence is not None:
                about |= {"if_seq_no": sequence[0], "if_primary_term": sequence[1]}
            row = {"sink": self._sink, "partition": number, "claim": state.claim, "offset": state.offset}
            action = "create" if sequence is None else "index"
            body += msgspec.json.encode({action: about}) + b"\n" + msgspec.json.encode(row) + b"\n"
        answer = self._client.bulk(body=body, index=INDEX)
        documents = {}
        for number, item in zip(states, answer["items"], strict=True):
            (outcome,) = item.values()
            if outcome["status"] == CONFLICT:
                raise superseded(self._sink, number)
            if "error" in outcome:
                raise UnavailableError(
                    f"OpenSearch at {self._address} does not take positions", got=outcome["error"]["type"]
                )
            sequence = outcome["_seq_no"], outcome["_primary_term"]
            documents[number] = PositionDocument(states[number], sequence)
        return documents

    def numbers(self) -> list[int]:
        """The partitions, and the other documents in the place of partitions, that the sink has."""
        self._client.indices.refresh(index=INDEX)
        query = {"query": {"term": {"sink": self._sink}}, "size": PARTITIONS_MAX}
        hits = self._client.search(body=query, index=INDEX)["hits"]["hits"]
        return [hit["_source"]["partition"] for hit in hits]

    def _id(self, number: int) -> str:
        return f"{self._sink}:{number}"
