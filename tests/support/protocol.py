"""A client of a few lines that speaks to the handlers of a broker directly, through real encoded requests."""

import asyncio
import itertools
from collections.abc import Sequence
from functools import lru_cache

from headwater.door.kafka.api import Later, Request
from headwater.door.kafka.authentication import Authentication
from headwater.door.kafka.fetch_session import FetchSessions
from headwater.door.kafka.handlers import HANDLERS
from headwater.errors import ErrorCode, RequestError
from headwater.log.broker import Broker
from headwater.protocol.kafka.codec import Message, layout
from headwater.record import (
    CONTROL,
    TRANSACTIONAL,
    BatchHeader,
    Record,
    encode_batch,
    open_batch,
    reencode_batch,
    whole_batches,
)


class Client:
    """Calls handlers of one broker; answers come back decoded."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._sessions = FetchSessions()
        self._sequences: dict[tuple[int, str, int], itertools.count] = {}

    async def call(self, name: str, version: int, **fields: object) -> Message:
        return await self.exchange(name, version, build(layout(name, "request"), "", fields))

    async def exchange(self, name: str, version: int, message: Message) -> Message:
        """The answer to a request that is made already."""
        request, response = layout(name, "request"), layout(name, "response")
        frame = bytearray(b"".join(request.encode(version, message)))
        body = request.decode(version, memoryview(frame))
        handler = HANDLERS[request.api.key]
        answer = handler.function(
            Request(
                body,
                version,
                "test",
                "host",
                self.broker,
                ("h", 1),
                self._sessions,
                Authentication({}),
                connection=self,
            )
        )
        if isinstance(answer, Later):
            done = asyncio.get_running_loop().create_future()
            answer.add_done_callback(lambda later: done.done() or done.set_result(later.result()))
            answer = await done
        elif not isinstance(answer, Message):
            answer = await answer
        return response.decode(version, b"".join(response.encode(version, answer)))

    async def produce(
        self, topic: str, partition: int, values: Sequence[bytes | Record], codec: int = 0, **batch: int
    ) -> Message:
        """One batch, compressed with the codec of that number; the answer of its partition."""
        records = [v if isinstance(v, Record) else Record(v, v, (), 1_000) for v in values]
        data = encode_batch(records, **batch)
        if codec:
            header = BatchHeader.read(data)
            data = reencode_batch(header._replace(attributes=header.attributes | codec), open_batch(data))
        topics = [{"name": topic, "partition_data": [{"index": partition, "records": data}]}]
        answer = await self.call("Produce", 9, acks=-1, timeout_ms=1000, topic_data=topics)
        return answer.responses[0].partition_responses[0]

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        committed: bool = True,
        max_bytes: int = 1 << 21,
        **more: int,
    ) -> Message:
        """One fetch outside of a session; the answer of its partition."""
        part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}
        fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": max_bytes, "session_epoch": -1, **more}
        answer = await self.call(
            "Fetch",
            11,
            isolation_level=int(committed),
            topics=[{"topic": topic, "partitions": [part]}],
            **fields,
        )
        return answer.responses[0].partitions[0]

    async def read(
        self, topic: str, partition: int, offset: int = 0, *, committed: bool = True, max_bytes: int = 1 << 21
    ) -> tuple[list[Record], int]:
        """The records from an offset to the end as a consumer gets them, and where it is then.

        Like every client it skips the batches of a producer from where the broker says that a transaction of it was aborted, until it
        meets the marker.
        """
        found: list[Record] = []
        while True:
            part = await self.fetch(topic, partition, offset, committed=committed, max_bytes=max_bytes)
            if part.error_code:
                raise RequestError(ErrorCode(part.error_code), f"{topic}-{partition} at {offset}")
            before, skipped = offset, set()
            waiting = sorted((a.first_offset, a.producer_id) for a in part.aborted_transactions or ())
            for batch in whole_batches(part.records):
                header = BatchHeader.read(batch)
                while waiting and waiting[0][0] <= header.last_offset:
                    skipped.add(waiting.pop(0)[1])
                if header.attributes & CONTROL:
                    skipped.discard(header.producer_id)
                elif not (committed and header.attributes & TRANSACTIONAL and header.producer_id in skipped):
                    found += [r for r in opened(bytes(batch)) if r.offset >= before]
                offset = header.last_offset + 1
            if offset == before:
                return found, offset


def build(lay, path: str, fields: dict) -> Message:
    """Nested dictionaries to messages."""
    for name, value in fields.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            below = f"{path}.{name}" if path else name
            fields = {**fields, name: [build(lay, below, each) for each in value]}
    return lay.struct(path)(**fields)


@lru_cache(10_000)
def opened(batch: bytes) -> list[Record]:
    """The records of a batch; who reads a log again and again opens the same ones."""
    return open_batch(batch)
