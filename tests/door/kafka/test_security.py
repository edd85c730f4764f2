"""TLS and SASL PLAIN: who may use the broker, and the reason that others get."""

import subprocess
import sys

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from support.servers import BrokerProcess, wait_until


@pytest.fixture
def guarded(tmp_path, monkeypatch):
    """A broker with TLS and one user."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    made = subprocess.run(
        [*command.split(), "-keyout", str(key), "-out", str(certificate)], capture_output=True, check=False
    )
    assert made.returncode == 0, made.stderr
    (tmp_path / "headwater.toml").write_text(
        f'tls_certificate = "{certificate}"\ntls_key = "{key}"\n[users]\nalice = "correct horse"\n'
    )
    monkeypatch.chdir(tmp_path)
    process = BrokerProcess(tmp_path / "data")
    process.start()
    yield process, certificate
    assert process.end() == 0


def settings(process, certificate, password="correct horse"):  # noqa: S107
    return {
        "bootstrap.servers": process.bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(certificate),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": password,
        "log_level": 0,
    }


def test_a_user_with_the_right_password_is_served_over_tls(guarded):
    acknowledged = []
    producer = Producer(settings(*guarded))
    producer.produce("t", b"x", on_delivery=lambda error, _: acknowledged.append(error))
    assert producer.flush(60) == 0
    assert acknowledged == [None]


def test_a_wrong_password_is_refused(guarded):
    errors = []
    client = AdminClient(settings(*guarded, password="wrong") | {"error_cb": errors.append})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3)
    wait_until(
        lambda: client.poll(0.1) or any("Authentication failed" in str(e) for e in errors), 10, "the refusal"
    )


def test_a_client_without_credentials_gets_nothing(guarded):
    process, certificate = guarded
    client = AdminClient(
        {
            "bootstrap.servers": process.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(certificate),
            "log_level": 0,
        }
    )
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3)
    assert "has not authenticated" in process.log.read_text()


@pytest.mark.parametrize(("host", "warned"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_passwords_that_go_over_a_network_as_they_are_are_warned_of(tmp_path, monkeypatch, host, warned):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWATER_HOST", host)
    monkeypatch.setenv("HEADWATER_USERS", '{"shop": "secret"}')
    process = BrokerProcess(tmp_path / "data")
    process.start()

    assert process.end() == 0
    said = process.log.read_text()
    assert ("passwords are sent unencrypted" in said) is warned
    assert "secret" not in said


def test_an_open_address_without_users_is_refused_unless_insisted_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWATER_HOST", "0.0.0.0")
    done = subprocess.run(
        [sys.executable, "-m", "headwater", "broker", "--data", "d", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 2
    assert "clients need no password" in done.stderr
