"""The way to a MariaDB is encrypted, and its server proved, as the address asks for; otherwise there is no connection."""

import json
import shutil
import threading
import uuid
from collections.abc import Iterator

import pytest

from headwater.capture.loop.feed import Feed
from headwater.capture.mariadb.source import MariaDBSource
from headwater.errors import CaptureError
from support.captured import by_key, events, running
from support.databases import MariaDBProcess
from support.servers import make_certificate, wait_until


@pytest.fixture(scope="module")
def secure(tmp_path_factory) -> Iterator[MariaDBProcess]:
    """A server with a certificate, and a user who must use it."""
    server = MariaDBProcess()
    for path in make_certificate(tmp_path_factory.mktemp("tls")):
        shutil.copy(path, server.folder)
        (server.folder / path.name).chmod(0o644)
    server.start(f"--ssl-cert={server.folder / 'cert.pem'}", f"--ssl-key={server.folder / 'key.pem'}")
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE TABLE shop.orders (id int PRIMARY KEY, n int)")
        cursor.execute("INSERT INTO shop.orders VALUES (1, 1)")
        cursor.execute(
            "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO safe IDENTIFIED BY 'secret' REQUIRE SSL"
        )
    yield server
    server.end()


def address(server: MariaDBProcess, query: str, host: str = "127.0.0.1") -> str:
    return f"mysql://safe:secret@{host}:{server.port}?{query}"


def source(url: str, name: str = "lab") -> MariaDBSource:
    return MariaDBSource(name, url, ["shop.orders"])


@pytest.mark.parametrize("query", ["ssl-ca={ca}", "ssl-mode=VERIFY_CA&ssl-ca={ca}", "ssl-mode=REQUIRED"])
def test_rows_and_changes_come_over_tls(secure, broker, query):
    name = f"tls{uuid.uuid4().hex[:8]}"
    url = address(secure, query.format(ca=secure.folder / "cert.pem"))

    def rows() -> dict:
        found = by_key(events(broker.bootstrap, name), f"{name}.shop.orders")
        return {json.loads(key)["id"]: row["n"] for key, row in found.items()}

    with running(Feed(name, source(url, name), broker.bootstrap)):
        wait_until(lambda: 1 in rows(), 30, "the rows")
        n = rows()[1] + 1
        with secure.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("UPDATE shop.orders SET n = n + 1")
        wait_until(lambda: rows() == {1: n}, 30, "the change")


def test_a_server_with_a_certificate_of_another_authority_is_refused(secure, tmp_path):
    other, _ = make_certificate(tmp_path)
    for mode in ("VERIFY_CA", "VERIFY_IDENTITY"):
        with pytest.raises(CaptureError, match=r"its certificate is not trusted.*ssl-ca=FILE"):
            source(address(secure, f"ssl-mode={mode}&ssl-ca={other}")).prepare()


def test_a_server_that_is_not_trusted_ends_the_capture_instead_of_being_asked_again(secure, broker):
    feed = Feed("untrusted", source(address(secure, "ssl-mode=VERIFY_CA")), broker.bootstrap)
    with pytest.raises(CaptureError, match="its certificate is not trusted"):
        feed.run(threading.Event())


def test_a_certificate_of_another_name_is_refused_where_the_name_counts(secure):
    ca = secure.folder / "cert.pem"

    assert source(address(secure, f"ssl-mode=VERIFY_CA&ssl-ca={ca}", "127.1")).prepare()
    with pytest.raises(CaptureError, match=r"not trusted.*(mismatch|doesn't match)"):
        source(address(secure, f"ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}", "127.1")).prepare()


@pytest.mark.parametrize("mode", ["REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"])
def test_a_server_that_does_not_encrypt_is_refused_where_that_was_asked_for(mariadb, mode):
    with pytest.raises(CaptureError, match="does not encrypt connections, and ssl-mode requires that"):
        MariaDBSource("lab", f"{mariadb.url}?ssl-mode={mode}", ["shop.orders"]).prepare()


def test_files_that_are_missing_or_no_certificates_are_named(secure, tmp_path):
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(CaptureError, match=r"a file of its address is missing; got .*none.pem"):
        source(address(secure, f"ssl-ca={tmp_path}/none.pem")).prepare()
    with pytest.raises(CaptureError, match="is not a PEM file"):
        source(address(secure, f"ssl-ca={tmp_path}/ca.pem")).prepare()


def test_a_user_that_must_use_tls_is_refused_without_it(secure):
    with pytest.raises(CaptureError, match="the user or its password is refused"):
        source(address(secure, "ssl-mode=DISABLED")).prepare()
