"""Sets of transactions: what was read is in, the text comes back, and MySQL gets its ranges."""

import pytest

from headwater.capture.mariadb.binlog.events import Gtid
from headwater.capture.mariadb.binlog.gtid import MariaGtids, MySqlGtids, gtids
from headwater.errors import CaptureError

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def gtid(number, domain=UUID, server=0):
    return Gtid(domain, server, number, standalone=False)


def test_mariadb_keeps_the_newest_of_each_domain():
    have = MariaGtids("7-2-5,0-1-10")
    have.add(gtid(11, 0, 3))

    assert str(have) == "0-3-11,7-2-5"


def test_mysql_keeps_ranges_and_joins_them():
    have = MySqlGtids(f"{UUID}:1-5:8")
    assert str(have) == f"{UUID}:1-5:8"
    for number, expected in ((7, "1-5:7:8"), (6, "1-7:8"), (20, "1-7:8:20")):
        have.add(gtid(number))
        assert str(MySqlGtids(str(have))) == f"{UUID}:{expected}"


def test_mysqls_ranges_go_out_with_exclusive_ends():
    packed = MySqlGtids(f"{UUID}:1-5").packed()

    assert packed[8:24].hex() == UUID.replace("-", "")
    assert [int.from_bytes(packed[at : at + 8], "little") for at in (0, 24, 32, 40)] == [1, 1, 1, 6]


@pytest.mark.parametrize("mariadb", [True, False])
def test_an_empty_set_has_a_text_that_comes_back(mariadb):
    assert str(gtids("-", mariadb=mariadb)) == "-"


def test_a_text_of_another_kind_is_refused():
    with pytest.raises(CaptureError, match="take a new snapshot"):
        gtids("0/16B3748", mariadb=True)
    with pytest.raises(CaptureError, match="take a new snapshot"):
        gtids("0-1-5", mariadb=False)


@pytest.mark.parametrize(
    ("mariadb", "have", "text", "inside"),
    [
        (True, "0-1-100,1-1-5", "0-2-100", True),
        (True, "0-1-100,1-1-5", "0-1-100, 1-1-6", False),
        (True, "0-1-100", "2-1-1", False),
        (True, "-", "-", True),
        (False, f"{UUID}:1-5:8-9", f"{UUID}:2-4:8", True),
        (False, f"{UUID}:1-5:8-9", f"{UUID}:4-8", False),
        (False, f"{UUID}:1-5", f"{UUID.replace('3', '4')}:1", False),
    ],
)
def test_a_set_says_whether_it_has_all_of_another(mariadb, have, text, inside):
    assert gtids(have, mariadb=mariadb).includes(text) is inside
