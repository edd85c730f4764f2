"""What MySQL writes and MariaDB does not, without a server: it is read, or refused with the setting that ends it; never passed over."""

import pytest

from headwater.capture.mariadb.binlog.decoder import HEADER, Decoder
from headwater.capture.mariadb.binlog.events import Gtid
from headwater.errors import CaptureError


def event(kind: int, body: bytes) -> bytes:
    return HEADER.pack(0, kind, 1, HEADER.size + len(body), 0, 0) + body


def test_a_transaction_is_known_by_its_server_and_number():
    server = bytes(range(16))
    found = Decoder(lambda *_: True, checksum=False).decode(
        event(33, b"\x01" + server + (77).to_bytes(8, "little"))
    )

    assert found == Gtid("00010203-0405-0607-0809-0a0b0c0d0e0f", 0, 77, standalone=False)


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (39, "binlog_row_value_options"),
        (40, "binlog_transaction_compression"),
        (42, "gtid_next"),
        (20, "binlog_format"),
    ],
    ids=["partial rows", "compressed transaction", "tagged gtid", "rows of an old server"],
)
def test_events_that_cannot_be_read_are_refused_with_their_setting(kind, setting):
    with pytest.raises(CaptureError, match=setting):
        Decoder(lambda *_: True, checksum=False).decode(event(kind, bytes(30)))
