"""How a log is reached, in the words of librdkafka and of Java."""

from headwater.access import Access, access


def test_an_open_log_needs_its_address_only():
    assert access("a:1").librdkafka() == access("a:1").java() == {"bootstrap.servers": "a:1"}


def test_both_libraries_get_tls_and_the_user(tmp_path):
    ca = tmp_path / "ca.pem"
    ca.write_text("-----BEGIN CERTIFICATE-----\n")
    found = Access("a:1", tls=True, ca=str(ca), user="alice", password='a"b\\c')
    assert found.librdkafka() == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(ca),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": 'a"b\\c',
    }
    assert found.java() == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="alice" password="a\\"b\\\\c";',
    }
    assert found.spark()["kafka.security.protocol"] == "SASL_SSL"


def test_further_options_reach_both_libraries_or_the_one_they_name():
    options = {
        "sasl.mechanism": "SCRAM-SHA-512",
        "ssl.endpoint.identification.algorithm": "none",
        "java.ssl.keystore.type": "PEM",
        "librdkafka.ssl.key.location": "key.pem",
    }
    found = Access("a:1", tls=True, user="u", password="p", options=options)
    assert found.librdkafka() == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "p",
        "ssl.endpoint.identification.algorithm": "none",
        "ssl.key.location": "key.pem",
    }
    java = found.java()
    assert "ScramLoginModule" in java["sasl.jaas.config"]
    assert java["ssl.endpoint.identification.algorithm"] == ""
    assert java["ssl.keystore.type"] == "PEM"
    assert "ssl.key.location" not in java


def test_its_text_is_the_address_alone():
    found = Access("a:1", user="alice", password="secret")
    assert str(found) == "a:1"
    assert "secret" not in repr(found)
