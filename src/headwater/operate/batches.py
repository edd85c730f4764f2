"""Batches: the record batches of a topic as the log keeps them, of ours or of Apache Kafka, by its own protocol.

A client library hands out records only. What belongs to an aborted transaction, what is a marker and what compaction has taken stands in the
batches, so they are fetched here as they are. A small client: one connection to each broker, one request at a time.
"""

import itertools
import socket
import ssl
import struct
from collections.abc import Iterator
from typing import Any

from headwater.access import CHECK_NAME, PLAIN, Log, access
from headwater.errors import ErrorCode, HeadwaterError, MachineError, UsageError
from headwater.kafka.codec import Message, layout
from headwater.record import BatchHeader, whole_batches

__all__ = ["Batches"]

TIMEOUT_S = 30.0
FETCH_BYTES = 4 << 20
WAIT_MS = 500
VERSIONS = {"Metadata": 8, "Fetch": 11, "SaslHandshake": 1, "SaslAuthenticate": 1}
"""The last without tagged fields; both logs speak them."""
CLIENT = b"headwater-ledger"
HEAD = struct.Struct(">hhih")


class Batches:
    """Reads topics of a log. For one thread; `close` ends its connections."""

    def __init__(self, log: Log) -> None:
        self._access = access(log)
        self._connections: dict[tuple[str, int], socket.socket] = {}
        self._numbers = itertools.count(1)

    def close(self) -> None:
        for each in self._connections.values():
            each.close()
        self._connections = {}

    def leaders(self, topic: str) -> dict[int, tuple[str, int]]:
        """Which broker has each partition of a topic; none for a topic that does not exist."""
        answer = self._ask(
            self._door(), "Metadata", topics=[{"name": topic}], allow_auto_topic_creation=False
        )
        brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
        (found,) = answer.topics
        if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return {}
        self._check(found.error_code, topic)
        for each in found.partitions:
            self._check(each.error_code, f"{topic}-{each.partition_index}")
        return {each.partition_index: brokers[each.leader_id] for each in found.partitions}

    def read(
        self, broker: tuple[str, int], topic: str, partition: int, start: int, end: int
    ) -> Iterator[memoryview]:
        """The batches of a partition from one offset up to another, markers and open transactions among them."""
        offset, size = start, FETCH_BYTES
        while offset < end:
            data = self._fetch(broker, topic, partition, offset, size)
            if not data:
                return  # compaction has left nothing up to the end
            found = list(whole_batches(data))
            if not found:
                size *= 2
            for batch in found:
                header = BatchHeader.read(batch)
                if header.base_offset >= end:
                    return
                yield batch
                offset = header.last_offset + 1

    def _fetch(self, broker: tuple[str, int], topic: str, partition: int, offset: int, size: int) -> Any:
        place = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": size}
        answer = self._ask(
            broker,
            "Fetch",
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=size,
            topics=[{"topic": topic, "partitions": [place]}],
        )
        self._check(answer.error_code, topic)
        (found,) = answer.responses[0].partitions
        self._check(found.error_code, f"{topic}-{partition}")
        return found.records

    # ---- requests --------------------------------------------------------------------------------------

    def _door(self) -> tuple[str, int]:
        """The first broker of the address that answers."""
        failures = []
        for text in self._access.bootstrap.split(","):
            host, _, port = text.strip().rpartition(":")
            broker = (host.strip("[]"), int(port))
            try:
                self._connection(broker)
            except MachineError as error:
                failures.append(error)
            else:
                return broker
        raise failures[0]

    def _ask(self, broker: tuple[str, int], name: str, **fields: Any) -> Message:
        return self._exchange(broker, self._connection(broker), name, **fields)

    def _exchange(self, broker: tuple[str, int], line: socket.socket, name: str, **fields: Any) -> Message:
        request, response, version = layout(name, "request"), layout(name, "response"), VERSIONS[name]
        number = next(self._numbers)
        head = HEAD.pack(request.api.key, version, number, len(CLIENT)) + CLIENT
        body = b"".join(request.encode(version, _built(request, "", fields), head))
        try:
            line.sendall(struct.pack(">i", len(body)) + body)
            (size,) = struct.unpack(">i", _received(line, 4))
            data = _received(line, size)
        except OSError as error:
            self._connections.pop(broker, None)
            raise self._away(str(error)) from error
        return response.decode(version, data, 4)  # behind the number of the request

    def _connection(self, broker: tuple[str, int]) -> socket.socket:
        if broker not in self._connections:
            try:
                line = socket.create_connection(broker, TIMEOUT_S)
                if self._access.tls:
                    line = self._tls().wrap_socket(line, server_hostname=broker[0])
            except OSError as error:
                raise self._away(str(error)) from error
            if self._access.user:
                self._log_in(broker, line)
            self._connections[broker] = line
        return self._connections[broker]

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._access.ca or None)
        if self._access.options.get(CHECK_NAME) == "none":
            context.check_hostname = False
        return context

    def _log_in(self, broker: tuple[str, int], line: socket.socket) -> None:
        mechanism = self._access.librdkafka().get("sasl.mechanism", PLAIN)
        if mechanism != PLAIN:
            raise UsageError(
                "the batches of this log cannot be read", got=f"sasl.mechanism {mechanism}", expected=PLAIN
            )
        secret = f"\0{self._access.user}\0{self._access.password}".encode()
        for name, fields in (
            ("SaslHandshake", {"mechanism": PLAIN}),
            ("SaslAuthenticate", {"auth_bytes": secret}),
        ):
            answer = self._exchange(broker, line, name, **fields)
            if answer.error_code:
                raise MachineError(
                    f"log {self._access} refuses the connection",
                    hint="see log_user and log_password in the settings",
                )

    def _check(self, code: int, what: str) -> None:
        if code:
            known = {int(each): each.name for each in ErrorCode}
            raise MachineError(
                f"{what} cannot be read from log {self._access}",
                got=known.get(code, f"error {code}"),
                hint="ask again: retention or another broker may have taken it meanwhile",
            )

    def _away(self, reason: str) -> HeadwaterError:
        return MachineError(f"log {self._access} does not answer", got=reason, hint="is the broker running?")


def _received(line: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        count = line.recv_into(view[at:])
        if not count:
            raise ConnectionError("the connection was closed")
        at += count
    return data


def _built(made: Any, path: str, fields: dict[str, Any]) -> Message:
    """A message from dictionaries inside each other."""
    values = {}
    for name, value in fields.items():
        below = f"{path}.{name}" if path else name
        nested = isinstance(value, list) and value and isinstance(value[0], dict)
        values[name] = [_built(made, below, each) for each in value] if nested else value
    message: Message = made.struct(path)(**values)
    return message
