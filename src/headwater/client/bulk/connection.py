"""BrokerConnection: requests to one broker and its answers, in order; several may be outstanding.

It is for what client libraries do not offer, or only record by record: whole batches, share groups. Callers
name the API; one table has the version that is used. A connection that has failed is closed and never used
again.
"""

import socket
import ssl
import struct
from collections import deque
from typing import Any

from headwater.access import CHECK_NAME, PLAIN, Access
from headwater.client.bulk import scram
from headwater.errors import MachineError
from headwater.protocol.kafka.codec import Layout, Message, layout

__all__ = ["BrokerConnection", "compose", "speaks"]

VERSIONS = {
    "Produce": 9,
    "Fetch": 11,
    "Metadata": 9,
    "FindCoordinator": 3,
    "InitProducerId": 4,
    "AddPartitionsToTxn": 3,
    "EndTxn": 3,
    "SaslHandshake": 1,
    "SaslAuthenticate": 2,
    "AddOffsetsToTxn": 3,
    "IncrementalAlterConfigs": 1,
    "OffsetFetch": 7,
    "ShareGroupHeartbeat": 1,
    "ShareFetch": 2,
    "ShareAcknowledge": 2,
    "DescribeShareGroupOffsets": 1,
    "AlterShareGroupOffsets": 0,
    "ShareGroupDescribe": 1,
    "ListGroups": 5,
}
"""Versions of Apache Kafka 2.8, and of all brokers since; those of share groups are of Apache Kafka 4.2.

In later versions a produce request begins a transaction by itself, and the end of a transaction changes the
epoch.
"""
CLIENT = b"headwater"
ANSWER_S = 30.0
"""A broker that sends nothing for so long is treated as lost, and asked again."""
ANSWER_BYTES_MAX = 100_000_000
KNOWN = {
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    CHECK_NAME,
}
"""The options of security that a connection supports."""


def speaks(log: Access) -> bool:
    """Whether all security options of a log are supported here."""
    options = log.librdkafka()
    secured = {name for name in options if name.startswith(("sasl.", "ssl."))}
    return _mechanism(options) in {PLAIN, *scram.DIGESTS} and secured <= KNOWN


def compose(api: str, path: str = "", /, **fields: Any) -> Message:
    """A request, or a struct inside it."""
    return layout(api, "request").struct(path)(**fields)


class BrokerConnection:
    """A connection to one broker, authenticated.

    Raises OSError if it is lost, MachineError if the broker refuses us.
    """

    def __init__(self, access: Access, host: str, port: int, timeout_s: float) -> None:
        options = access.librdkafka()
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(ANSWER_S)
        self._waiting: deque[tuple[int, Layout, int]] = deque()
        self._next = 0
        try:
            if "SSL" in options.get("security.protocol", ""):
                self._socket = _context(options).wrap_socket(self._socket, server_hostname=host)
            if "SASL" in options.get("security.protocol", ""):
                self._authenticate(options)
        except BaseException:
            self.close()
            raise

    def ask(self, name: str, message: Message, version: int | None = None) -> Message:
        """Sends a single request; returns its answer."""
        self.send(name, message, version)
        return self.receive()

    def send(self, name: str, message: Message, version: int | None = None) -> None:
        """Sends a request, in the version of the table unless another one is given."""
        question, version = layout(name, "request"), VERSIONS[name] if version is None else version
        head = struct.pack(">ihhih", 0, question.api.key, version, self._next, len(CLIENT)) + CLIENT
        if version in question.api.flexible:
            head += b"\0"
        pieces = question.encode(version, message, head)
        struct.pack_into(">i", pieces[0], 0, sum(map(len, pieces)) - 4)
        self._waiting.append((self._next, layout(name, "response"), version))
        self._next += 1
        self._socket.sendall(b"".join(pieces))

    def receive(self) -> Message:
        """The answer to the oldest request without one."""
        (size,) = struct.unpack(">i", self._exactly(4))
        if not 4 <= size <= ANSWER_BYTES_MAX:
            raise OSError(f"an answer of {size} bytes")
        frame = self._exactly(size)
        number, answer, version = self._waiting.popleft()
        if struct.unpack_from(">i", frame)[0] != number:
            raise OSError("the answers are not in the order of their requests")
        return answer.decode(version, frame, 5 if version in answer.api.flexible else 4)

    def fileno(self) -> int:
        """For ``select``, together with `has_bytes`."""
        return self._socket.fileno()

    def has_bytes(self) -> bool:
        """Whether TLS has decrypted bytes already that ``select`` does not see."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def settle(self, timeout_s: float) -> None:
        """Waits for the answers to everything that was sent, and ignores them. Raises OSError."""
        self._socket.settimeout(timeout_s)
        while self._waiting:
            self.receive()

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        buffer, at = bytearray(count), 0
        with memoryview(buffer) as view:
            while at < count:
                got = self._socket.recv_into(view[at:])
                if not got:
                    raise ConnectionResetError("the broker has closed the connection")
                at += got
        return bytes(buffer)

    def _authenticate(self, options: dict[str, str]) -> None:
        mechanism = _mechanism(options)
        user, password = options.get("sasl.username", ""), options.get("sasl.password", "")
        handshake = self.ask("SaslHandshake", compose("SaslHandshake", mechanism=mechanism))
        if handshake.error_code:
            raise _refused(mechanism, f"the log knows {', '.join(handshake.mechanisms)}")
        if mechanism == PLAIN:
            self._exchange(mechanism, f"\0{user}\0{password}".encode())
            return
        client = scram.ScramClient(mechanism, user, password)
        first = self._exchange(mechanism, client.first)
        client.check(self._exchange(mechanism, client.final(first)))

    def _exchange(self, mechanism: str, token: bytes) -> bytes:
        answer = self.ask("SaslAuthenticate", compose("SaslAuthenticate", auth_bytes=token))
        if answer.error_code:
            raise _refused(mechanism, answer.error_message or f"error {answer.error_code}")
        return bytes(answer.auth_bytes)


def _mechanism(options: dict[str, str]) -> str:
    return options.get("sasl.mechanism", options.get("sasl.mechanisms", PLAIN))


def _refused(mechanism: str, why: str) -> MachineError:
    return MachineError(
        "the log will not let us in", got=f"{mechanism}: {why}", hint="check the user and password of the log"
    )


def _context(options: dict[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=options.get("ssl.ca.location"))
    if options.get(CHECK_NAME) == "none":
        context.check_hostname = False
    if options.get("enable.ssl.certificate.verification") == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if "ssl.certificate.location" in options:
        context.load_cert_chain(
            options["ssl.certificate.location"],
            options.get("ssl.key.location"),
            options.get("ssl.key.password"),
        )
    return context
