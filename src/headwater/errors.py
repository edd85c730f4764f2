"""Every error of Headwater, and the error codes of the Kafka protocol.

    HeadwaterError
    ├── UsageError        you: a wrong setting, an impossible graph, an unknown name
    ├── MachineError      the machine: no Java, a port in use, a missing jar
    ├── ProtocolError     the peer: bytes that do not follow the protocol
    ├── StorageError      the disk: a full or failing disk, a data folder in use
    ├── CaptureError      the database: it does not have, or may not give, what a capture needs
    ├── UnavailableError  a store or database: it does not answer now; a retry may succeed
    ├── FencedError       a successor has taken over; this process ends
    ├── NotReachedError   a view has not reached the requested position in time
    ├── OverloadedError   a writer had no room for as long as it was allowed to wait
    ├── NoReplyError      a request has got no reply: none came in time, or its handler gave it up
    ├── RejectError       raised by a worker's handler: the message goes to the dead letters at once
    ├── RetryError        raised by a worker's handler: the message is tried again after a pause of its own
    └── RequestError      the log answers a request with one of Kafka's error codes

The message says what is wrong, what was found, what was expected and what to do; the parts can be read by
code. The command line prints one line and exits with ``exit_code``.
"""

import sqlite3
from enum import IntEnum
from typing import ClassVar

__all__ = [
    "CaptureError",
    "ErrorCode",
    "FencedError",
    "HeadwaterError",
    "MachineError",
    "NoReplyError",
    "NotReachedError",
    "OverloadedError",
    "ProtocolError",
    "RejectError",
    "RequestError",
    "RetryError",
    "StorageError",
    "UnavailableError",
    "UsageError",
    "one_line",
]

LINE_CHARACTERS = 1_000
"""How much of a message of a library is shown."""


SQLITE_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE}
"""A full disk, for the file or for the memory that its readers share."""


class HeadwaterError(Exception):
    """What is wrong, what was found and expected, and the next step, as one readable line."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, got: str = "", expected: str = "", hint: str = "") -> None:
        super().__init__(what, got, expected, hint)
        self.what = what
        self.got = got
        self.expected = expected
        self.hint = hint

    def __str__(self) -> str:
        parts = [self.what]
        if self.got:
            parts.append(f"got {self.got}")
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.hint:
            parts.append(self.hint)
        return "; ".join(parts)


def one_line(error: BaseException, characters: int | None = LINE_CHARACTERS) -> str:
    """The message of an error as one line."""
    return " ".join(str(error).split())[:characters]


class UsageError(HeadwaterError):
    """The caller asked for something impossible: nothing was started, nothing was changed."""

    exit_code = 2


class MachineError(HeadwaterError):
    """The machine lacks something that the call needs."""

    exit_code = 3


class ProtocolError(HeadwaterError):
    """The peer sent bytes that do not follow the Kafka protocol; its connection is closed."""

    exit_code = 4


class StorageError(HeadwaterError):
    """The disk has failed, or we may not write to it."""

    exit_code = 5


class CaptureError(HeadwaterError):
    """A captured database does not have, or may not give, what the capture needs: the capture stops."""

    exit_code = 8


class UnavailableError(HeadwaterError):
    """A store or a database does not answer now. Its callers log that, and retry without limit."""

    exit_code = 3


class FencedError(HeadwaterError):
    """Another process has taken over the work of this one, which ends and must not be restarted."""

    exit_code = 6


class NotReachedError(HeadwaterError):
    """A view has not reached the requested position in time.

    Nothing was changed; a later attempt may succeed.
    """

    exit_code = 7


class OverloadedError(HeadwaterError):
    """A writer had no room for as long as it was allowed to wait: it has not taken the last record."""

    exit_code = 9


class NoReplyError(HeadwaterError):
    """A request has got no reply: none came in time, or its message became a dead letter.

    After a time-out the request may still be handled; its reply is dropped.
    """


class RejectError(HeadwaterError):
    """Raised by the handler of a worker: no further attempt will help, so the message is a dead letter."""


class RetryError(HeadwaterError):
    """Raised by the handler of a worker: the message is tried again after a pause, like ``"10s"``."""

    def __init__(self, after: str, why: str = "") -> None:
        super().__init__(why or f"to be tried again after {after}")
        self.after = after


class ErrorCode(IntEnum):
    """Kafka's own error names and numbers."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    KAFKA_STORAGE_ERROR = 56
    OPERATION_NOT_ATTEMPTED = 55
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    FENCED_MEMBER_EPOCH = 110
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    SHARE_SESSION_LIMIT_REACHED = 133


class RequestError(HeadwaterError):
    """The log refuses a request; Kafka's error code says why."""

    def __init__(self, code: ErrorCode, what: str = "") -> None:
        super().__init__(what or code.name)
        self.code = code
