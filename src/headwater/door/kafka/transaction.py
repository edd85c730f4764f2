"""AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn, DescribeTransactions, ListTransactions.

AddPartitionsToTxn 0-3      all partitions or none: if one is unknown or internal, OPERATION_NOT_ATTEMPTED for
                            the others
AddOffsetsToTxn 0-4         of a share group too, for its acknowledgements (an extension)
TxnOffsetCommit 0-4: from 3 on checked against the group's members
EndTxn 0-4                  answered when every partition has its marker
DescribeTransactions 0      ListTransactions 0-1

Transactions version 2 (KIP-890) is not offered, so clients add their partitions before they write to them. A
fenced producer gets PRODUCER_FENCED where its version knows it, INVALID_PRODUCER_EPOCH before. This module
translates; ``log/transactions/coordinator.py`` and ``log/transactions/transaction.py`` decide.
"""

import asyncio
from collections.abc import Coroutine

from headwater.door.kafka.api import Answer, Request, serves
from headwater.door.kafka.group_offsets import answer_when_stored, collect_offset, fail_all, may_commit
from headwater.errors import ErrorCode, RequestError
from headwater.log.groups.group_record import Committed
from headwater.log.shares.share_store import SHARES_TOPIC
from headwater.log.storage.catalog import INTERNAL
from headwater.log.transactions.coordinator import Identity
from headwater.log.transactions.transaction import Transaction, TransactionState
from headwater.protocol.kafka.codec import Message, layout

_add_response = layout("AddPartitionsToTxn", "response")
_add_offsets_response = layout("AddOffsetsToTxn", "response")
_end_response = layout("EndTxn", "response")
_commit_response = layout("TxnOffsetCommit", "response")
_describe_response = layout("DescribeTransactions", "response")
_list_response = layout("ListTransactions", "response")


@serves("AddPartitionsToTxn", 0, 3)
def add_partitions(request: Request) -> Answer:
    return asyncio.ensure_future(_add_partitions(request))


async def _add_partitions(request: Request) -> Message:
    body = request.body
    wanted = {(topic.name, index) for topic in body.v3_and_below_topics for index in topic.partitions}
    refused = {place: code for place in wanted if (code := _refusal(request, *place))}
    code = ErrorCode.NONE
    if not refused:
        identity = Identity(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
        transactions = request.broker.transactions
        code = await _code(
            transactions.add(body.v3_and_below_transactional_id, identity, wanted, set()),
            request.version >= 2,
        )
    entry = _add_response.struct("results_by_topic_v3_and_below.results_by_partition")
    topics = []
    for topic in body.v3_and_below_topics:
        results = [
            entry(partition_index=index, partition_error_code=_verdict(code, (topic.name, index), refused))
            for index in topic.partitions
        ]
        topics.append(
            _add_response.struct("results_by_topic_v3_and_below")(
                name=topic.name, results_by_partition=results
            )
        )
    return _add_response.struct()(results_by_topic_v3_and_below=topics)


def _refusal(request: Request, topic: str, index: int) -> ErrorCode:
    """Why a partition cannot be part of a client's transaction: it is internal or does not exist."""
    if topic in INTERNAL:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    entry = request.broker.catalog.topics.get(topic)
    exists = entry is not None and 0 <= index < len(entry.partitions)
    return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _verdict(
    code: ErrorCode, partition: tuple[str, int], refused: dict[tuple[str, int], ErrorCode]
) -> ErrorCode:
    if not refused:
        return code
    return refused.get(partition, ErrorCode.OPERATION_NOT_ATTEMPTED)


@serves("AddOffsetsToTxn", 0, 4)
def add_offsets(request: Request) -> Answer:
    return asyncio.ensure_future(_add_offsets(request))


async def _add_offsets(request: Request) -> Message:
    body = request.body
    identity, broker = Identity(body.producer_id, body.producer_epoch), request.broker
    is_share_group = broker.shares.has(body.group_id)
    partitions = {(SHARES_TOPIC, 0)} if is_share_group else set()
    groups = set() if is_share_group else {body.group_id}
    adding = broker.transactions.add(body.transactional_id, identity, partitions, groups)
    return _add_offsets_response.struct()(error_code=await _code(adding, request.version >= 2))


@serves("EndTxn", 0, 4)
def end_transaction(request: Request) -> Answer:
    return asyncio.ensure_future(_end(request))


async def _end(request: Request) -> Message:
    body = request.body
    identity = Identity(body.producer_id, body.producer_epoch)
    ending = request.broker.transactions.end(body.transactional_id, identity, commit=body.committed)
    return _end_response.struct()(error_code=await _code(ending, request.version >= 2))


@serves("TxnOffsetCommit", 0, 4)
def commit_offsets(request: Request) -> Answer:
    body, broker = request.body, request.broker
    refusal = ErrorCode.NONE if body.group_id else ErrorCode.INVALID_GROUP_ID
    if not refusal and (body.generation_id >= 0 or body.member_id or broker.shares.has(body.group_id)):
        refusal = may_commit(broker, body, body.generation_id)
    offsets: dict[tuple[str, int], Committed] = {}
    entry = _commit_response.struct("topics.partitions")
    topics = []
    for topic in body.topics:
        parts = [
            entry(
                partition_index=part.partition_index,
                error_code=refusal or collect_offset(broker, topic.name, part, offsets),
            )
            for part in topic.partitions
        ]
        topics.append(_commit_response.struct("topics")(name=topic.name, partitions=parts))
    answer = _commit_response.struct()(topics=topics)
    if not offsets:
        return answer
    identity = Identity(body.producer_id, body.producer_epoch)
    try:
        broker.transactions.commit_offsets(body.transactional_id, identity, body.group_id, offsets)
    except RequestError as refused:
        fail_all(topics, _code_for_version(refused.code, knows_fenced=False))
        return answer
    return answer_when_stored(broker, answer, lambda code: fail_all(topics, code))


@serves("DescribeTransactions", 0, 0)
def describe_transactions(request: Request) -> Answer:
    by_id = request.broker.transactions.by_id
    states = [_describe(name, by_id.get(name)) for name in request.body.transactional_ids]
    return _describe_response.struct()(transaction_states=states)


def _describe(name: str, transaction: Transaction | None) -> Message:
    entry = _describe_response.struct("transaction_states")
    if transaction is None:
        return entry(error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=name)
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(index)
    topic_entry = _describe_response.struct("transaction_states.topics")
    return entry(
        transactional_id=name,
        transaction_state=transaction.state.value,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.started_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        topics=[topic_entry(topic=topic, partitions=indexes) for topic, indexes in by_topic.items()],
    )


@serves("ListTransactions", 0, 1)
def list_transactions(request: Request) -> Answer:
    body, now_ms = request.body, request.broker.clock.now_ms()
    known_states = {state.value for state in TransactionState}
    entry = _list_response.struct("transaction_states")
    transactions = [
        entry(transactional_id=t.id, producer_id=t.producer_id, transaction_state=t.state.value)
        for t in request.broker.transactions.by_id.values()
        if (not body.state_filters or t.state.value in body.state_filters)
        and (not body.producer_id_filters or t.producer_id in body.producer_id_filters)
        and (
            body.duration_filter < 0 or (t.started_ms >= 0 and now_ms - t.started_ms >= body.duration_filter)
        )
    ]
    unknown = [state for state in body.state_filters if state not in known_states]
    return _list_response.struct()(transaction_states=transactions, unknown_state_filters=unknown)


async def _code(work: Coroutine[None, None, None], knows_fenced: bool) -> ErrorCode:
    """The error code of a call that may be refused."""
    try:
        await work
    except RequestError as refused:
        return _code_for_version(refused.code, knows_fenced=knows_fenced)
    return ErrorCode.NONE


def _code_for_version(code: ErrorCode, *, knows_fenced: bool) -> ErrorCode:
    return (
        ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED and not knows_fenced else code
    )
