"""Produce, InitProducerId.

Produce 3-11          one batch for each partition, checked and stored unopened. acks=-1 is answered when the
                      records are as safe as ``flush`` asks for, 1 when they are written, 0 never. A repeated
                      batch of an idempotent producer is answered with its first offset. A transactional batch
                      needs its partition in an open transaction of its producer.
InitProducerId 0-5    a new id for an idempotent producer; for a transactional one the next epoch, which
                      fences the former. A fenced producer gets PRODUCER_FENCED from 4 on,
                      INVALID_PRODUCER_EPOCH before.
"""

import asyncio
from typing import NamedTuple

from headwater.door.kafka.api import Answer, Request, serves
from headwater.errors import ErrorCode, RequestError
from headwater.log.broker import Broker
from headwater.log.storage.catalog import INTERNAL
from headwater.log.storage.partition import Partition
from headwater.log.transactions.coordinator import Identity
from headwater.protocol.kafka.codec import Message, layout
from headwater.record import HEADER_BYTES, NO_TIMESTAMP, TRANSACTIONAL, BatchHeader

_produce_response = layout("Produce", "response")
_Topic = _produce_response.struct("responses")
_Partition = _produce_response.struct("responses.partition_responses")
_init_response = layout("InitProducerId", "response")

ACKS = frozenset({-1, 0, 1})


class _Pending(NamedTuple):
    """An appended batch whose answer waits until it is safe."""

    answer: Message
    partition: Partition
    last_offset: int


@serves("Produce", 3, 11)
def produce(request: Request) -> Answer:
    body = request.body
    pending: list[_Pending] = []
    topics = []
    for topic in body.topic_data:
        answers = [
            _append(request.broker, topic.name, part, body.acks, pending) for part in topic.partition_data
        ]
        topics.append(_Topic(name=topic.name, partition_responses=answers))
    if body.acks == 0:
        return None
    answer = _produce_response.struct()(responses=topics)
    waiting = [p for p in pending if p.partition.high_watermark <= p.last_offset]
    if body.acks != -1 or not waiting:
        return answer
    return _when_safe(request.broker, answer, waiting)


def _append(broker: Broker, topic: str, part: Message, acks: int, pending: list[_Pending]) -> Message:
    try:
        if acks not in ACKS:
            raise RequestError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}, expected -1, 0 or 1")
        partition = broker.catalog.partition(topic, part.index)
        if topic in INTERNAL:
            raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"only the broker writes to {topic}")
        if not part.records:
            raise RequestError(ErrorCode.INVALID_RECORD, "a produce request has no records")
        _check_transaction(broker, topic, part)
        now_ms = broker.clock.now_ms()
        appended = partition.append(part.records, now_ms=now_ms)
    except RequestError as refused:
        return _Partition(
            index=part.index, error_code=refused.code, base_offset=-1, error_message=str(refused)
        )
    answer = _Partition(
        index=part.index,
        base_offset=appended.base_offset,
        log_append_time_ms=now_ms if partition.config.appends_time else NO_TIMESTAMP,
        log_start_offset=partition.log_start_offset,
    )
    pending.append(_Pending(answer, partition, appended.last_offset))
    return answer


def _check_transaction(broker: Broker, topic: str, part: Message) -> None:
    if len(part.records) < HEADER_BYTES:
        return
    header = BatchHeader.read(part.records)
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise RequestError(ErrorCode.INVALID_RECORD, "a batch has a producer id but no sequence number")
    if header.attributes & TRANSACTIONAL:
        broker.transactions.check_produce(
            Identity(header.producer_id, header.producer_epoch), topic, part.index
        )


def _when_safe(broker: Broker, answer: Message, waiting: list[_Pending]) -> asyncio.Future[Message]:
    done: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def finish(_: object) -> None:
        for pending in waiting:
            if pending.partition.high_watermark <= pending.last_offset:
                pending.answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                pending.answer.base_offset = -1
        if not done.done():
            done.set_result(answer)

    broker.committed().add_done_callback(finish)
    return done


@serves("InitProducerId", 0, 5)
def init_producer_id(request: Request) -> Answer:
    body, broker = request.body, request.broker
    if body.transactional_id is None:
        try:
            return _init_response.struct()(producer_id=broker.new_producer_id(), producer_epoch=0)
        except RequestError as refused:
            return _init_response.struct()(error_code=refused.code, producer_id=-1, producer_epoch=-1)
    return asyncio.ensure_future(_init_transactional(request))


async def _init_transactional(request: Request) -> Message:
    body = request.body
    current = Identity(body.producer_id, body.producer_epoch)
    try:
        identity = await request.broker.transactions.init(
            body.transactional_id, body.transaction_timeout_ms, current
        )
    except RequestError as refused:
        code = refused.code
        if code is ErrorCode.PRODUCER_FENCED and request.version < 4:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return _init_response.struct()(error_code=code, producer_id=-1, producer_epoch=-1)
    return _init_response.struct()(producer_id=identity.producer_id, producer_epoch=identity.epoch)
