"""Access: where a log is and how to authenticate, in the options of each client library.

The settings make one Access, and the options for librdkafka, Spark and Java all come from it, so every part
of Headwater reaches a log with TLS, users or other security in the same way. Its text is the address only: no
password is ever printed.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

__all__ = ["Access", "Log", "access"]

JAVA, LIBRDKAFKA = "java.", "librdkafka."
"""Prefixes of options that only one of the two libraries understands."""
PLAIN = "PLAIN"
LOGIN = "org.apache.kafka.common.security"
MODULES = {PLAIN: f"{LOGIN}.plain.PlainLoginModule"}
SCRAM_MODULE = f"{LOGIN}.scram.ScramLoginModule"
CHECK_NAME = "ssl.endpoint.identification.algorithm"


class Access(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """How to reach one log. ``ca`` is a PEM file (empty: the authorities that the machine trusts)."""

    bootstrap: str
    tls: bool = False
    ca: str = ""
    user: str = ""
    password: str = ""
    options: Mapping[str, str] = {}
    """Further options by Kafka's names, for both libraries, or for one of them with its prefix."""
    replication: int = -1
    """The replication factor of topics that we create; -1: the log's own default."""

    def __str__(self) -> str:
        return self.bootstrap

    def __repr__(self) -> str:
        return f"Access({self.bootstrap!r})"

    def librdkafka(self) -> dict[str, str]:
        """The options of confluent-kafka's clients."""
        options = {"bootstrap.servers": self.bootstrap} | self._protocol()
        if self.tls and self.ca:
            options["ssl.ca.location"] = self.ca
        if self.user:
            options |= {"sasl.username": self.user, "sasl.password": self.password}
        return options | self._own(LIBRDKAFKA, JAVA)

    def java(self) -> dict[str, str]:
        """The options of Kafka's own clients.

        Certificates are passed as text: executors on other machines need no file.
        """
        options = {"bootstrap.servers": self.bootstrap} | self._protocol()
        if self.tls and self.ca:
            options |= {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": Path(self.ca).read_text().strip(),
            }
        own = self._own(JAVA, LIBRDKAFKA)
        if self.user:
            module = MODULES.get(own.get("sasl.mechanism", PLAIN), SCRAM_MODULE)
            options["sasl.jaas.config"] = (
                f"{module} required username={_quoted(self.user)} password={_quoted(self.password)};"
            )
        if own.get(CHECK_NAME) == "none":  # Java expects an empty text for that
            own[CHECK_NAME] = ""
        return options | own

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
"""What names a log: an Access, or the ``host:port`` of a log without security."""


def access(log: Log) -> Access:
    return Access(log) if isinstance(log, str) else log


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
