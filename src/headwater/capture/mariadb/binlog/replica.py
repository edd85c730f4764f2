"""Replica: a connection of PyMySQL used as a replica's, and the packets of a server that keeps sending.

PyMySQL does what is done once: address, TLS, authentication, settings. The stream is read here in large
pieces, since PyMySQL's two reads and one object for each packet would cost more than the decoding.
"""

import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from headwater.capture.mariadb.binlog.gtid import NOTHING, Gtids, MySqlGtids
from headwater.errors import UnavailableError

__all__ = ["Packets", "Replica"]

PIECE_BYTES: Final = 1 << 18
PACKET_BYTES_MAX: Final = 0xFFFFFF
"""A longer payload continues in the next packet."""
HEARTBEAT_S: Final = 1
LIFE_S: Final = 0.5
"""After this time without an event there is a sign of life for the caller."""
SILENCE_S_MAX: Final = 15
"""After this time without an event or heartbeat, the server counts as gone."""


class Packets:
    """Splits a byte stream into the payloads of packets."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._buffer = bytearray()
        self._begun = b""

    def read(self) -> list[bytes]:
        """Reads a piece, and returns the payloads that it completes.

        UnavailableError at the end of the stream.
        """
        piece = self._read(PIECE_BYTES)
        if not piece:
            raise UnavailableError("the database has closed the connection")
        buffer = self._buffer
        buffer += piece
        payloads, at, end = [], 0, len(buffer)
        while end - at >= 4:
            size = buffer[at] | buffer[at + 1] << 8 | buffer[at + 2] << 16
            if end - at < 4 + size:
                break
            payload = bytes(buffer[at + 4 : at + 4 + size])
            at += 4 + size
            if size == PACKET_BYTES_MAX:
                self._begun += payload
            elif self._begun:
                payloads.append(self._begun + payload)
                self._begun = b""
            else:
                payloads.append(payload)
        del buffer[:at]
        return payloads


class Replica:
    """Requests the binlog after a set of transactions, and returns its events as they arrive."""

    def __init__(self, connection: Any, server_id: int) -> None:
        self._connection = connection
        self._server_id = server_id

    def start(self, have: Gtids, *, checksum: bool) -> None:
        """Asks the server to send; a refusal arrives with the first events."""
        cursor = self._connection.cursor()
        cursor.execute("SET SESSION net_write_timeout = 3600")  # publishing may delay our reading for a while
        # Without this announcement, the server removes the checksums from its events.
        cursor.execute("SET @master_binlog_checksum = %s", ("CRC32" if checksum else "NONE",))
        cursor.execute(f"SET @master_heartbeat_period = {HEARTBEAT_S * 1_000_000_000}")
        if isinstance(have, MySqlGtids):
            self.register()
            body = have.packed()
            self._command(0x1E, struct.pack("<HIIQI", 4, self._server_id, 0, 4, len(body)) + body)
            return
        cursor.execute("SET @mariadb_slave_capability = 4")
        cursor.execute("SET @slave_connect_state = %s", (str(have) if str(have) != NOTHING else "",))
        cursor.execute("SET @slave_gtid_strict_mode = 0")
        cursor.execute("SET @slave_gtid_ignore_duplicates = 0")
        self.register()
        self._command(0x12, struct.pack("<IHI", 4, 0, self._server_id))

    def events(self) -> Iterator[list[bytes]]:
        """Lists of events; an empty list is a sign of life.

        UnavailableError if the server sends no heartbeat.
        """
        sock = self._connection._sock  # noqa: SLF001  PyMySQL cannot read a stream of packets
        sock.settimeout(LIFE_S)
        packets = Packets(sock.recv)
        received = time.monotonic()
        while True:
            try:
                payloads = packets.read()
            except TimeoutError:
                if time.monotonic() - received > SILENCE_S_MAX:
                    raise UnavailableError(
                        "the database sends no heartbeat", hint="the capture tries again"
                    ) from None
                yield []
                continue
            received = time.monotonic()
            events: list[bytes] = []
            for payload in payloads:
                if payload[0]:
                    if events:
                        yield events
                    _raise_refusal(payload)
                events.append(payload[1:])
            if events:
                yield events

    def register(self) -> None:
        """Registers as a replica; the server refuses a user without the right to replicate."""
        body = struct.pack("<I", self._server_id) + b"\x09headwater\0\0" + struct.pack("<HII", 0, 0, 0)
        self._command(0x15, body)
        self._connection._read_ok_packet()  # noqa: SLF001

    def _command(self, number: int, body: bytes) -> None:
        self._connection._execute_command(number, body)  # noqa: SLF001


def _raise_refusal(payload: bytes) -> None:
    if payload[0] == 0xFF:
        from pymysql.err import raise_mysql_exception  # noqa: PLC0415  an optional dependency

        raise_mysql_exception(payload)
    raise UnavailableError("the database has ended the stream of its binlog")
