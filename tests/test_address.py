"""Addresses are printed without what is secret in them, however they are written."""

import pytest

from headwater import capture, sink
from headwater.address import check_postgres, shown
from headwater.capture.mariadb.address import Address
from headwater.capture.postgres.connection import connect
from headwater.config import load
from headwater.errors import UsageError
from headwater.sink.store import SinkFeed


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
def test_an_address_that_libpq_would_quote_is_refused_without_being_shown(url):
    target, declared = sink.Postgres(url), capture.Postgres(url, ["t"])
    for act in (lambda: target.open(SinkFeed("s", "t", ("id",), {"id": "STRING"})), lambda: connect(url)):
        with pytest.raises(UsageError, match=r"the address is not that of a PostgreSQL.*%40") as caught:
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


def test_a_mariadb_address_with_a_wrong_port_is_refused_without_being_shown():
    with pytest.raises(
        UsageError, match="the port in the address of a MariaDB source is not a number"
    ) as caught:
        capture.MariaDB("mysql://me:secret/a@host/shop", ["d.t"]).check("shop")

    assert "secret" not in repr(caught.value)
    assert caught.value.__suppress_context__


def test_an_unknown_option_of_a_mariadb_address_is_refused_by_its_name():
    with pytest.raises(UsageError, match=r"got 'ssl'; expected of ssl-mode, ssl-ca, ssl-cert, ssl-key"):
        capture.MariaDB("mysql://me:secret@host/shop?ssl=true", ["d.t"]).check("shop")
    with pytest.raises(UsageError, match=r"got 'sslmode'.*did you mean 'ssl-mode'"):
        capture.MariaDB("mysql://me@host?sslmode=require", ["d.t"]).check("shop")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("ssl-mode=verify", "ssl-mode is wrong; got 'VERIFY'; expected of DISABLED, PREFERRED, REQUIRED"),
        ("ssl-mode=REQUIRED&ssl-ca=ca.pem", "ssl-ca has no effect with this ssl-mode; got REQUIRED"),
        ("ssl-cert=me.pem", "ssl-cert and ssl-key belong together"),
        ("ssl-mode=DISABLED&ssl-cert=me.pem&ssl-key=me.pem", "needs an encrypted connection"),
    ],
)
def test_options_that_contradict_each_other_are_refused(query, said):
    with pytest.raises(UsageError, match=said):
        capture.MariaDB(f"mysql://me@host?{query}", ["d.t"]).check("shop")


def test_who_names_an_authority_gets_a_server_that_has_proved_its_name():
    assert Address("mysql://me@host?ssl-ca=ca.pem").mode == "VERIFY_IDENTITY"
    assert Address("mysql://me@host?ssl-mode=verify-ca").mode == "VERIFY_CA"
    assert Address("mysql://me@host").mode == "PREFERRED"


FEED = SinkFeed("s", "t", ("id",), {"id": "STRING"})


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (sink.Postgres("postgresql://me@host/shop?sslmod=require"), "got 'sslmod'.*did you mean 'sslmode'"),
        (sink.Redis("redis://host?sockettimeout=3"), "got 'sockettimeout'.*did you mean 'socket_timeout'"),
        (sink.Redis("redis://host?ssl_ca_certs=ca.pem"), "got 'ssl_ca_certs'.*need rediss://"),
        (sink.Redis("rediss://host?ssl_ca_cert=ca.pem"), "got 'ssl_ca_cert'.*did you mean 'ssl_ca_certs'"),
        (sink.OpenSearch("https://host?verify_certs=false"), "got 'verify_certs'; expected none.*ca="),
        (sink.Delta("s3://bucket/lake?region=eu"), "got 'region'; expected none.*options="),
        (sink.Parquet("s3://bucket/lake"), "the path is an address; got s3://….*Delta"),
        (sink.Tantivy("http://host/index"), "the path is an address"),
        (sink.Sqlite("sqlite:///shop.db"), "the path is an address"),
        (sink.Kafka("kafka://host:9092"), "names its brokers only; expected host:port"),
        (sink.Redis("redis://me:a?hushhush@host"), "the address is unclear.*%3F"),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_an_unknown_option_of_a_store_is_refused_by_its_name(target, said):
    with pytest.raises(UsageError, match=said) as caught:
        target.check(FEED)
    assert "hushhush" not in repr(caught.value)


def test_known_options_of_stores_are_taken():
    sink.Redis("rediss://me:x@host:6380/2?ssl_ca_certs=ca.pem&socket_timeout=3").check(FEED)
    sink.Redis("unix:///tmp/redis.sock?db=1").check(FEED)
    sink.Postgres("postgresql://me@host/shop?sslmode=verify-full&sslrootcert=ca.pem").check(FEED)
    sink.Delta("./lake#1").check(FEED)


def test_options_of_other_addresses_are_refused_by_their_names():
    with pytest.raises(UsageError, match="got 'mode'; expected none"):
        capture.Polling("sqlite:shop.db?mode=ro", "t", "v").check("shop")
    with pytest.raises(
        UsageError, match="got 'acks'; expected none; options of Kafka's clients are in log_options"
    ):
        load(log="kafka://host:9092?acks=1")
