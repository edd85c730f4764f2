"""The table of all handlers by API key, and the requests with which every connection begins.

ApiVersions 0-4         what is in the table, and the features; an unknown version is answered in version 0
                        with UNSUPPORTED_VERSION, as in Kafka (KIP-511)
SaslHandshake 0-1       PLAIN only; after version 0 the token follows as a frame without a header
SaslAuthenticate 0-2    PLAIN's token: nothing, user and password, separated by zero bytes;
                        ``authentication.py`` decides
"""

from headwater.door.kafka import (
    admin,
    fetch,
    group,
    group_admin,
    group_offsets,
    produce,
    share_acknowledge,
    share_fetch,
    share_group,
    share_offsets,
    topics,
    transaction,
)
from headwater.door.kafka.api import Answer, Request, serves
from headwater.door.kafka.authentication import MECHANISM
from headwater.errors import ErrorCode, RequestError
from headwater.protocol.kafka.codec import Message, layout

__all__ = ["HANDLERS", "unsupported_version"]

OLDEST_PRODUCE = 0
"""Older librdkafka clients do not compress unless Produce seems to begin at version 0, as in Kafka."""

FEATURE, FEATURE_LEVEL = "share.version", 1
"""Share groups are always on (KIP-584, KIP-932)."""

_versions_response = layout("ApiVersions", "response")
_handshake_response = layout("SaslHandshake", "response")
_authenticate_response = layout("SaslAuthenticate", "response")


@serves("ApiVersions", 0, 4)
def api_versions(_: Request) -> Answer:
    return _supported(ErrorCode.NONE)


def unsupported_version() -> Message:
    """The answer to an ApiVersions request of a later version than we know."""
    return _supported(ErrorCode.UNSUPPORTED_VERSION)


def _supported(error: ErrorCode) -> Message:
    entry = _versions_response.struct("api_keys")
    keys = [
        entry(api_key=h.key, min_version=OLDEST_PRODUCE if h.key == 0 else h.first, max_version=h.last)
        for h in sorted(HANDLERS.values(), key=lambda h: h.key)
    ]
    supported = _versions_response.struct("supported_features")
    finalized = _versions_response.struct("finalized_features")
    return _versions_response.struct()(
        error_code=error,
        api_keys=keys,
        supported_features=[supported(name=FEATURE, min_version=FEATURE_LEVEL, max_version=FEATURE_LEVEL)],
        finalized_features_epoch=0,
        finalized_features=[
            finalized(name=FEATURE, min_version_level=FEATURE_LEVEL, max_version_level=FEATURE_LEVEL)
        ],
    )


@serves("SaslHandshake", 0, 1)
def handshake(request: Request) -> Answer:
    try:
        request.authentication.handshake(request.body.mechanism, request.version)
    except RequestError as refused:
        return _handshake_response.struct()(error_code=refused.code, mechanisms=[MECHANISM])
    return _handshake_response.struct()(mechanisms=[MECHANISM])


@serves("SaslAuthenticate", 0, 2)
def authenticate(request: Request) -> Answer:
    try:
        request.authentication.authenticate(request.body.auth_bytes)
    except RequestError as refused:
        return _authenticate_response.struct()(error_code=refused.code, error_message=str(refused))
    return _authenticate_response.struct()(error_message=None)


HANDLERS = {
    handler.key: handler
    for handler in (
        api_versions,
        handshake,
        authenticate,
        produce.produce,
        produce.init_producer_id,
        fetch.fetch,
        fetch.list_offsets,
        fetch.offset_for_leader_epoch,
        topics.metadata,
        topics.create_topics,
        topics.delete_topics,
        topics.find_coordinator,
        group.join_group,
        group.sync_group,
        group.heartbeat,
        group.leave_group,
        group_offsets.offset_commit,
        group_offsets.offset_fetch,
        group_offsets.offset_delete,
        group_admin.describe_groups,
        group_admin.list_groups,
        group_admin.delete_groups,
        share_group.heartbeat,
        share_group.describe_groups,
        share_offsets.describe_offsets,
        share_offsets.alter_offsets,
        share_offsets.delete_offsets,
        share_fetch.share_fetch,
        share_acknowledge.share_acknowledge,
        transaction.add_partitions,
        transaction.add_offsets,
        transaction.end_transaction,
        transaction.commit_offsets,
        transaction.describe_transactions,
        transaction.list_transactions,
        admin.describe_configs,
        admin.alter_configs,
        admin.increment_configs,
        admin.list_config_resources,
        admin.create_partitions,
        admin.delete_records,
        admin.describe_log_dirs,
        admin.describe_cluster,
        admin.describe_producers,
        admin.describe_topic_partitions,
    )
}
"""Everything that the broker serves; each handler's versions are next to its function."""
