"""Replica: a connection of PyMySQL as a replica's, and the packets of a server that goes on sending.

PyMySQL does what is done once (address, TLS, authentication, settings). What comes in masses is read here in large pieces, since its own
way, two reads and an object for each packet, would cost more than the decoding.
"""

import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from headwater.capture.gtid import NOTHING, Gtids, MySqlGtids
from headwater.errors import Away

__all__ = ["Packets", "Replica"]

PIECE_BYTES: Final = 1 << 18
PACKET_BYTES_MAX: Final = 0xFFFFFF
"""A longer payload goes on in the next packet."""
HEARTBEAT_S: Final = 1
LIFE_S: Final = 0.5
"""How often somebody who waits is told that we still do."""
SILENCE_S_MAX: Final = 15
"""Without even a heartbeat for so long, the server is gone."""


class Packets:
    """Payloads of packets out of pieces of a byte stream."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._buffer = bytearray()
        self._begun = b""

    def some(self) -> list[bytes]:
        """At least one piece is read; gives back the payloads that are complete by it. Away at the end of the stream."""
        piece = self._read(PIECE_BYTES)
        if not piece:
            raise Away("the database has closed the connection")
        buffer = self._buffer
        buffer += piece
        found, at, end = [], 0, len(buffer)
        while end - at >= 4:
            size = buffer[at] | buffer[at + 1] << 8 | buffer[at + 2] << 16
            if end - at < 4 + size:
                break
            payload = bytes(buffer[at + 4 : at + 4 + size])
            at += 4 + size
            if size == PACKET_BYTES_MAX:
                self._begun += payload
            elif self._begun:
                found.append(self._begun + payload)
                self._begun = b""
            else:
                found.append(payload)
        del buffer[:at]
        return found


class Replica:
    """Asks for the binlog behind a set of transactions, and hands its events over as they come."""

    def __init__(self, connection: Any, server_id: int) -> None:
        self._connection = connection
        self._server_id = server_id

    def start(self, have: Gtids, *, checksum: bool) -> None:
        """The server begins to send; what it refuses comes with the first events."""
        cursor = self._connection.cursor()
        cursor.execute("SET SESSION net_write_timeout = 3600")  # the log may keep us from reading for a while
        # Announced, or the server would not send what its checksums are made of as they stand.
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
        """Events in pieces; an empty list is a sign of life. Away when the server falls silent."""
        sock = self._connection._sock  # noqa: SLF001  PyMySQL has no other way to read what was not asked for
        sock.settimeout(LIFE_S)
        packets = Packets(sock.recv)
        heard = time.monotonic()
        while True:
            try:
                payloads = packets.some()
            except TimeoutError:
                if time.monotonic() - heard > SILENCE_S_MAX:
                    raise Away("the database sends no heartbeat", hint="it is tried again") from None
                yield []
                continue
            heard = time.monotonic()
            events: list[bytes] = []
            for payload in payloads:
                if payload[0]:
                    if events:
                        yield events
                    _refused(payload)
                events.append(payload[1:])
            if events:
                yield events

    def register(self) -> None:
        """Says who we are; the server refuses a user who may not replicate."""
        body = struct.pack("<I", self._server_id) + b"\x09headwater\0\0" + struct.pack("<HII", 0, 0, 0)
        self._command(0x15, body)
        self._connection._read_ok_packet()  # noqa: SLF001

    def _command(self, number: int, body: bytes) -> None:
        self._connection._execute_command(number, body)  # noqa: SLF001


def _refused(payload: bytes) -> None:
    if payload[0] == 0xFF:
        from pymysql.err import raise_mysql_exception  # noqa: PLC0415  an optional dependency

        raise_mysql_exception(payload)
    raise Away("the database has ended the stream of its binlog")
