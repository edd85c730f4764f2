"""Settings: frozen, read from ``headwater.toml`` and overridden by ``HEADWATER_*``.

An unknown key, a wrong type or a value out of bounds is an error that names the key, the value and the
nearest valid one; nothing is guessed and nothing is ignored.
"""

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec

from headwater.access import Access
from headwater.address import options
from headwater.errors import UsageError

__all__ = ["Settings", "is_loopback", "load"]

FILE = "headwater.toml"
PREFIX = "HEADWATER_"
TABLES = {"users", "log_options", "spark_options"}
"""Settings that are tables; in the environment, JSON objects."""
SPARK_OURS = {
    "spark.master": "that is the setting 'spark'",
    "spark.driver.memory": "that is the setting 'spark_memory'",
    "spark.sql.shuffle.partitions": "that is the setting 'shards'",
    "spark.sql.session.timeZone": "times are UTC everywhere: leave it out",
    "spark.sql.adaptive.streaming.stateless.enabled": "tasks would not learn of their batch: leave it out",
    "spark.sql.streaming.noDataMicroBatches.enabled": "the pipeline wakes idle views itself: leave it out",
}
"""Options of Spark that users cannot choose, and why."""
SECRET = TABLES | {"log_password", "console_token"}
"""Settings whose value is never printed."""
PORT_MAX = 65_535
TOKEN_MIN = 16
"""A shorter one can be guessed."""
RENAMED = {"store": "view_tables"}
"""Former names of settings."""

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings with their defaults. ``docs/settings.md`` explains each one."""

    log: str = "embedded:./data"
    """``embedded:DIR`` runs our own broker on DIR.

    ``kafka://host:port[,host:port]`` uses Apache Kafka, ``kafkas://…`` with TLS."""
    log_user: str = ""
    """Our user at the log (SASL PLAIN); for an embedded log with users, by default the first of them."""
    log_password: str = ""
    """The password of that user; for an embedded log, by default that of the users table."""
    log_ca: str = ""
    """PEM file of the authorities for the log's certificate.

    By default those of the machine, or the certificate of an embedded log."""
    log_options: dict[str, str] = {}
    """Further options of Kafka clients, like ``sasl.mechanism``.

    With ``java.`` or ``librdkafka.`` in front they are for that library only."""
    flush: Literal["commit", "os"] = "commit"
    """When an embedded write counts as safe: synced to the disk, or passed to the operating system."""
    spark: str = "local[*,4]"
    """A Spark master. The second number of ``local[…]`` is how many attempts a task has."""
    spark_memory: str = "1g"
    """Heap of the Spark driver."""
    spark_options: dict[str, str] = {}
    """Further options of Spark, like ``spark.executor.memory``.

    Options on which a view's rows depend cannot be set.
    """
    view_tables: str = "sqlite:./data/views"
    """``sqlite:DIR``: the folder of the tables from which the console serves views."""
    host: str = "127.0.0.1"
    """Address that the embedded broker listens on."""
    broker_port: Port = 9092
    """Port of the embedded broker; 0 takes a free one."""
    console_port: Port = 8080
    """Port of the console; 0 takes a free one."""
    console_host: str = "127.0.0.1"
    """Address that the console listens on; one that other machines reach needs a ``console_token``."""
    console_token: str = ""
    """The token that readers of the console must send; without one, everybody who reaches it may read."""
    console_names: str = ""
    """Names of the console's host, separated by commas, in addition to its addresses and ``localhost``."""
    users: dict[str, str] = {}
    """Names and passwords of the users of the embedded broker (SASL PLAIN).

    Without any, everybody may use it.
    """
    tls_certificate: str = ""
    """PEM file with the certificate of the embedded broker; with it, clients must use TLS."""
    tls_key: str = ""
    """PEM file with its key, if that is not in the certificate's file."""
    insecure: bool = False
    """Allows a broker without users, and a console without a token, where other machines reach them."""
    partitions: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    """The number of partitions of a topic that does not exist yet when it is needed."""
    shards: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    """The number of shards of the state of a view when it first runs; 0: as many as ``partitions``."""
    replication: Annotated[int, msgspec.Meta(ge=-1, le=32_767)] = -1
    """The replication factor of topics that we create; -1: the log's own default."""
    trigger_ms: Annotated[int, msgspec.Meta(ge=0, le=3_600_000)] = 200
    """Milliseconds between two micro-batches of a view; without new records there is no batch."""
    pace_records: Annotated[int, msgspec.Meta(ge=1_000)] = 100_000
    """By how many records the sinks of a view with ``pace="sink"`` may lag."""
    state_bytes_max: Annotated[int, msgspec.Meta(ge=1)] = 8 << 30
    """How large one shard of an operator's state may grow, in bytes of its keys and values."""

    def __repr__(self) -> str:
        """Without secrets, because settings may be logged or printed in a traceback."""
        printable = {
            key: "…" if key in SECRET and value else value
            for key, value in msgspec.structs.asdict(self).items()
        }
        return f"Settings({', '.join(f'{key}={value!r}' for key, value in printable.items())})"

    def environ(self) -> dict[str, str]:
        """The settings as environment variables, for a child process."""
        values = msgspec.structs.asdict(self)
        return {
            f"{PREFIX}{key.upper()}": msgspec.json.encode(value).decode()
            if isinstance(value, dict)
            else str(value)
            for key, value in values.items()
        }

    @property
    def embedded(self) -> Path | None:
        """The folder of the embedded log; None if the log is an Apache Kafka cluster."""
        return Path(self.log.removeprefix("embedded:")) if self.log.startswith("embedded:") else None

    @property
    def bootstrap(self) -> str:
        """The ``host:port`` list for Kafka clients."""
        if self.embedded is not None:
            return f"{self.host}:{self.broker_port}"
        return self.log.partition("://")[2]

    @property
    def access(self) -> Access:
        """How clients reach the log; our own parts use an embedded log as the first of its users."""
        if self.embedded is None:
            tls, ca, user, password = (
                self.log.startswith("kafkas://"),
                self.log_ca,
                self.log_user,
                self.log_password,
            )
        else:
            tls, ca = bool(self.tls_certificate), self.log_ca or self.tls_certificate
            user = self.log_user or next(iter(self.users), "")
            password = self.log_password or self.users.get(user, "")
        return Access(self.bootstrap, tls, ca, user, password, self.log_options, self.replication)

    @property
    def console_url(self) -> str:
        """The address of the console on this machine."""
        loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  not bound here
        host = loopback.get(self.console_host, self.console_host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.console_port}"

    @property
    def on_cluster(self) -> bool:
        """Whether Spark's tasks run in processes of other users or machines."""
        return not self.spark.startswith("local")

    @property
    def data(self) -> Path:
        """The folder of checkpoints, process logs and process ids.

        It is that of the embedded log, or of the view tables.
        """
        return self.embedded or self.views.parent

    @property
    def views(self) -> Path:
        """The folder of the SQLite files, one for each view."""
        return Path(self.view_tables.removeprefix("sqlite:"))

    @property
    def first_shards(self) -> int:
        """The number of shards of the state of a view when it first runs."""
        return self.shards or self.partitions


def load(path: Path | None = None, environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
    """Reads the settings file, if there is one, then the environment, then the arguments."""
    values = _from_file(path) | _from_environ(os.environ if environ is None else environ)
    values |= {key: value for key, value in overrides.items() if value is not None}
    for key in values:
        _check_known(key)
    try:
        settings = msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        key = str(error).rpartition("$.")[2].rstrip("`")
        key = re.split(r"\W", key)[0]
        got = "a value of another type" if key in SECRET else repr(values.get(key))
        raise UsageError(f"setting {key!r} is wrong", got=got, expected=_expected(key, error)) from None
    _check_urls(settings)
    _check_access(settings)
    _check_replication(settings)
    _check_spark(settings)
    _check_console(settings)
    return settings


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _from_file(path: Path | None) -> dict[str, Any]:
    file = path or Path(FILE)
    if not file.exists():
        if path is not None:
            raise UsageError(f"settings file {file} does not exist")
        return {}
    try:
        return tomllib.loads(file.read_text())
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"settings file {file} is not TOML: {error}") from error


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    """Values are plain text; a table, like ``users``, is a JSON object."""
    values: dict[str, Any] = {}
    for key, value in environ.items():
        if key.startswith(PREFIX):
            name = key.removeprefix(PREFIX).lower()
            values[name] = _table(name, value) if name in TABLES else value
    return values


def _table(name: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        expected = 'a JSON object like {"alice": "secret"}'
        raise UsageError(f"setting {name!r} is wrong: {error}", expected=expected) from None


def _check_known(key: str) -> None:
    names = Settings.__struct_fields__
    if key in names:
        return
    if key in RENAMED:
        raise UsageError(f"unknown setting {key!r}", hint=f"it is called {RENAMED[key]!r} now")
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"settings are: {', '.join(names)}"
    raise UsageError(f"unknown setting {key!r}", hint=hint)


def _expected(key: str, error: msgspec.ValidationError) -> str:
    text = str(error).partition(" - at ")[0]
    if text.startswith("Invalid enum value"):
        return " or ".join(map(repr, get_args(get_type_hints(Settings)[key])))
    return text.removeprefix("Expected ").partition(", got")[0]


def _check_access(settings: Settings) -> None:
    """Refuses settings with which the log would only seem not to answer."""
    user = settings.log_user
    if settings.embedded is not None and user and user not in settings.users:
        raise UsageError(
            "setting 'log_user' is not a user of the embedded log",
            got=repr(user),
            expected="a name in 'users'",
        )
    if settings.embedded is None and bool(user) != bool(settings.log_password):
        raise UsageError("settings 'log_user' and 'log_password' belong together", got="only one of them")
    if settings.log_ca and not Path(settings.log_ca).is_file():
        raise UsageError("setting 'log_ca' does not name a file", got=repr(settings.log_ca))
    if settings.log_ca and not settings.access.tls and "security.protocol" not in settings.log_options:
        raise UsageError(
            "setting 'log_ca' has no effect", got="a log without TLS", hint='write log = "kafkas://…"'
        )


def _check_console(settings: Settings) -> None:
    if 0 < len(settings.console_token) < TOKEN_MIN:
        raise UsageError(
            "setting 'console_token' is too short",
            got=f"{len(settings.console_token)} characters",
            expected=f"{TOKEN_MIN} or more, at random: openssl rand -hex 16",
        )


def _check_replication(settings: Settings) -> None:
    if settings.replication == 0:
        raise UsageError("setting 'replication' is wrong", got="0", expected="-1, or at least 1")
    if settings.embedded is not None and settings.replication > 1:
        raise UsageError(
            "setting 'replication' is too large for an embedded log",
            got=str(settings.replication),
            expected="-1 or 1: it is one broker",
            hint='several brokers are Apache Kafka: log = "kafka://…"',
        )


def _check_spark(settings: Settings) -> None:
    for name in settings.spark_options:
        if not name.startswith("spark."):
            raise UsageError(
                f"setting 'spark_options' has {name!r}", expected="names of Spark, which begin with spark."
            )
        if name in SPARK_OURS:
            raise UsageError(f"setting 'spark_options' has {name!r}", hint=SPARK_OURS[name])


def _check_ports(log: str) -> None:
    """Refuses an address without a port: the log would only seem not to answer."""
    for address in log.partition("://")[2].partition("?")[0].split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
            raise UsageError(
                "setting 'log' is wrong", got=repr(address), expected="HOST:PORT, like kafka://localhost:9092"
            )


def _check_urls(settings: Settings) -> None:
    if settings.embedded is None and "@" in settings.log:
        raise UsageError(
            "setting 'log' is wrong",
            got="an address with a user in it",
            expected="kafkas://host:port",
            hint="name the user with log_user and log_password",
        )
    if settings.embedded is None:
        options("setting 'log'", settings.log, hint="options of Kafka's clients are in log_options")
    if settings.log.startswith(("kafka://", "kafkas://")):
        _check_ports(settings.log)
    schemes = {
        "log": ("embedded:", "kafka://", "kafkas://"),
        "spark": ("local", "spark://"),
        "view_tables": ("sqlite:",),
    }
    for key, prefixes in schemes.items():
        value = getattr(settings, key)
        if not value.startswith(prefixes):
            raise UsageError(
                f"setting {key!r} is wrong", got=repr(value), expected=" or ".join(f"{p}…" for p in prefixes)
            )
