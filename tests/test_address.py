"""Addresses are printed without what is secret in them, however they are written."""

import pytest

from headwater import capture, sink
from headwater.address import check_postgres, shown
from headwater.capture.pgconnect import connect
from headwater.errors import UsageError
from headwater.sink.store import Feed


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://host", "https://host"),
        ("redis://me:secret@host:6379/2?password=secret", "redis://host:6379/2"),
        ("unix:///tmp/redis.sock?password=secret", "unix:///tmp/redis.sock"),
        ("postgresql://me:secret@a:5432,[::1]:5433/shop#secret", "postgresql://a:5432,[::1]:5433/shop"),
        ("postgresql://me:a@secret@host/shop", "postgresql://host/shop"),
        ("postgresql://me:a/secret@host/shop", "postgresql://***"),
        ("postgresql://me:a?secret@host/shop", "postgresql://***"),
        ("postgresql://me@host/shop?password=a@secret", "postgresql://***"),
        ("postgresql://me:secret", "postgresql://***"),
        ("host=a password=secret", "***"),
        ("sqlite:shop.db", "sqlite:shop.db"),
    ],
)
def test_an_address_is_shown_without_its_secrets(url, expected):
    assert shown(url) == expected
    assert "secret" not in shown(url, user=True)


def test_the_user_is_shown_where_it_is_asked_for():
    assert shown("postgresql://me:secret@host/shop", user=True) == "postgresql://me@host/shop"


BAD = [
    "postgres//me:secret@host/shop",
    "postgresql://me:secret%@host/shop",
    "postgresql://me:secret@[host/shop",
    "postgresql://me:a@secret@host/shop",
    "postgresql://me:a/secret@host/shop",
    "postgresql://me:secret",
    "host=a password=a secret",
]


@pytest.mark.parametrize("url", BAD)
def test_an_address_that_libpq_would_quote_is_refused_without_a_word_of_it(url):
    target, declared = sink.Postgres(url), capture.Postgres(url, ["t"])
    for act in (lambda: target.open(Feed("s", "t", ("id",), {"id": "STRING"})), lambda: connect(url)):
        with pytest.raises(UsageError, match=r"the address is none of a PostgreSQL.*%40") as caught:
            act()
        assert caught.value.__cause__ is caught.value.__context__ is None
        assert "secret" not in repr(caught.value)

    assert "secret" not in f"{target!r} {target} {declared!r} {declared}"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:a%40b%2Fc@host:5432/shop?sslmode=require",
        "postgresql:///shop?host=/tmp",
        "host=/tmp dbname=shop password='a b'",
    ],
)
def test_an_address_that_libpq_reads_as_it_looks_is_taken(url):
    check_postgres("sink 's'", url)


def test_a_mariadb_address_whose_port_is_none_is_refused_without_a_word_of_it():
    with pytest.raises(UsageError, match="port that is a number") as caught:
        capture.MariaDB("mysql://me:secret/a@host/shop", ["d.t"]).check("shop")

    assert "secret" not in repr(caught.value)
    assert caught.value.__suppress_context__
