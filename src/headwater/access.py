"""Access: where a log is and how it lets us in, in the words of each client library.

The settings yield one Access; librdkafka's, Spark's and Java's options all come from here, so that a log with TLS, users or
further security is reached alike by every part. Its text is the address alone: a password is never printed.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

__all__ = ["Access", "Log", "access"]

JAVA, LIBRDKAFKA = "java.", "librdkafka."
"""What an option begins with that only one of the two understands."""
PLAIN = "PLAIN"
LOGIN = "org.apache.kafka.common.security"
MODULES = {PLAIN: f"{LOGIN}.plain.PlainLoginModule"}
SCRAM_MODULE = f"{LOGIN}.scram.ScramLoginModule"
CHECK_NAME = "ssl.endpoint.identification.algorithm"


class Access(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """How one log is reached. ``ca`` is a PEM file (empty: the authorities that the machine trusts)."""

    bootstrap: str
    tls: bool = False
    ca: str = ""
    user: str = ""
    password: str = ""
    options: Mapping[str, str] = {}
    """Further options by Kafka's names, for both libraries, or for one with its prefix in front."""
    replication: int = -1
    """On how many brokers a topic is kept that we make; -1: the log's own default."""

    def __str__(self) -> str:
        return self.bootstrap

    def __repr__(self) -> str:
        return f"Access({self.bootstrap!r})"

    def librdkafka(self) -> dict[str, str]:
        """The options of confluent-kafka's clients."""
        found = {"bootstrap.servers": self.bootstrap} | self._protocol()
        if self.tls and self.ca:
            found["ssl.ca.location"] = self.ca
        if self.user:
            found |= {"sasl.username": self.user, "sasl.password": self.password}
        return found | self._own(LIBRDKAFKA, JAVA)

    def java(self) -> dict[str, str]:
        """The options of Kafka's own clients. Certificates go as text: executors on other machines need no file."""
        found = {"bootstrap.servers": self.bootstrap} | self._protocol()
        if self.tls and self.ca:
            found |= {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": Path(self.ca).read_text().strip(),
            }
        own = self._own(JAVA, LIBRDKAFKA)
        if self.user:
            module = MODULES.get(own.get("sasl.mechanism", PLAIN), SCRAM_MODULE)
            found["sasl.jaas.config"] = (
                f"{module} required username={_quoted(self.user)} password={_quoted(self.password)};"
            )
        if own.get(CHECK_NAME) == "none":  # Java's word for it is nothing
            own[CHECK_NAME] = ""
        return found | own

    def spark(self) -> dict[str, str]:
        """The options of Spark's Kafka source and sink."""
        return {f"kafka.{name}": value for name, value in self.java().items()}

    def _protocol(self) -> dict[str, str]:
        if not self.user:
            return {"security.protocol": "SSL"} if self.tls else {}
        return {"security.protocol": "SASL_SSL" if self.tls else "SASL_PLAINTEXT", "sasl.mechanism": PLAIN}

    def _own(self, prefix: str, other: str) -> dict[str, str]:
        return {
            name.removeprefix(prefix): value
            for name, value in self.options.items()
            if not name.startswith(other)
        }


Log = Access | str
"""What names a log: an Access, or the ``host:port`` of one that lets everybody in."""


def access(log: Log) -> Access:
    return Access(log) if isinstance(log, str) else log


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
