"""Settings: frozen, read from ``headwater.toml`` and overridden by ``HEADWATER_*``.

An unknown key, a wrong type or a value out of bounds is an error that names the key, what was found
and the nearest right one; nothing is guessed and nothing is ignored.
"""

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

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
    "spark.sql.shuffle.partitions": "that is the setting 'partitions'",
    "spark.sql.session.timeZone": "times are UTC everywhere: leave it out",
    "spark.sql.adaptive.streaming.stateless.enabled": "tasks would not hear what their batch is: leave it out",
    "spark.sql.streaming.noDataMicroBatches.enabled": "the pipeline wakes idle views itself: leave it out",
}
"""Options of Spark that are no user's to choose, and why."""
SECRET = TABLES | {"log_password", "console_token"}
"""Settings whose value is never printed."""
TOKEN_MIN = 16
"""A shorter one can be guessed."""

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings with their defaults. ``docs/settings.md`` explains each one."""

    log: str = "embedded:./data"
    """``embedded:DIR`` runs our own broker on DIR; ``kafka://host:port[,host:port]`` uses Apache Kafka, ``kafkas://…`` over TLS."""
    log_user: str = ""
    """Who we are to the log (SASL PLAIN); for an embedded log with users, the first of them."""
    log_password: str = ""
    """The password of that user; for an embedded log, that of the users table."""
    log_ca: str = ""
    """PEM file of the authorities whose certificate the log may show; else the machine's, or an embedded log's own."""
    log_options: dict[str, str] = {}
    """Further options of Kafka clients, like ``sasl.mechanism``; ``java.`` or ``librdkafka.`` in front: only for that one."""
    flush: Literal["commit", "os"] = "commit"
    """When an embedded write counts as done: synced to the disk, or handed to the operating system."""
    spark: str = "local[*,4]"
    """A Spark master. The second number of ``local[…]`` is how often a task may be tried."""
    spark_memory: str = "1g"
    """Heap of the Spark driver."""
    spark_options: dict[str, str] = {}
    """Further options of Spark, like ``spark.executor.memory``; those that a view's rows depend on are ours."""
    store: str = "sqlite:./data/views"
    """Where the tables of views are kept."""
    host: str = "127.0.0.1"
    """Address that the embedded broker listens on."""
    broker_port: Port = 9092
    """Port of the embedded broker; 0 takes a free one."""
    console_port: Port = 8080
    """Port of the console; 0 takes a free one."""
    console_host: str = "127.0.0.1"
    """Address that the console listens on; one that other machines reach needs a ``console_token``."""
    console_token: str = ""
    """What readers of the console must know; none: everybody who reaches it."""
    console_names: str = ""
    """Names, with commas between them, under which the console is asked for, beside its addresses and ``localhost``."""
    users: dict[str, str] = {}
    """Names and passwords of those who may use the embedded broker (SASL PLAIN); none: everybody who reaches it."""
    tls_certificate: str = ""
    """PEM file with the certificate of the embedded broker; with it, clients must use TLS."""
    tls_key: str = ""
    """PEM file with its key, if that is not in the certificate's file."""
    insecure: bool = False
    """Lets the broker without users, and the console without a token, listen on an address that other machines reach."""
    partitions: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    """Partitions of a topic that an application declares and that does not exist yet."""
    replication: Annotated[int, msgspec.Meta(ge=-1, le=32_767)] = -1
    """On how many brokers the topics that we make are kept; -1: as many as the log does by itself."""
    trigger_ms: Annotated[int, msgspec.Meta(ge=0, le=3_600_000)] = 200
    """Milliseconds between two micro-batches of a view; without new records there is no batch."""
    pace_records: Annotated[int, msgspec.Meta(ge=1_000)] = 100_000
    """By how many records the sinks of a view with ``pace="sink"`` may be behind."""
    state_bytes_max: Annotated[int, msgspec.Meta(ge=1)] = 8 << 30
    """How far one shard of an operator's state may grow, in bytes of its keys and values."""

    def __repr__(self) -> str:
        """Without secrets: settings may end up in a log or a traceback."""
        shown = {
            key: "…" if key in SECRET and value else value
            for key, value in msgspec.structs.asdict(self).items()
        }
        return f"Settings({', '.join(f'{key}={value!r}' for key, value in shown.items())})"

    def environ(self) -> dict[str, str]:
        """The settings as a child process reads them, whatever file or environment they came from."""
        values = msgspec.structs.asdict(self)
        return {
            f"{PREFIX}{key.upper()}": msgspec.json.encode(value).decode()
            if isinstance(value, dict)
            else str(value)
            for key, value in values.items()
        }

    @property
    def embedded(self) -> Path | None:
        """The folder of the embedded log, or None when the log is an Apache Kafka cluster."""
        return Path(self.log.removeprefix("embedded:")) if self.log.startswith("embedded:") else None

    @property
    def bootstrap(self) -> str:
        """The ``host:port`` list that Kafka clients are given."""
        if self.embedded is not None:
            return f"{self.host}:{self.broker_port}"
        return self.log.partition("://")[2]

    @property
    def access(self) -> Access:
        """How clients of the log reach it; our own parts use an embedded log as the first of its users."""
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
        """Where this machine finds the console."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.console_host, self.console_host)  # noqa: S104  not bound here
        return f"http://{f'[{host}]' if ':' in host else host}:{self.console_port}"

    @property
    def on_cluster(self) -> bool:
        """Whether Spark's tasks run in processes of other users or machines."""
        return not self.spark.startswith("local")

    @property
    def data(self) -> Path:
        """The folder of checkpoints, process logs and process ids: the embedded log's own, or that of the view tables."""
        return self.embedded or self.views.parent

    @property
    def views(self) -> Path:
        """The folder of the SQLite files, one for each view."""
        return Path(self.store.removeprefix("sqlite:"))


def load(path: Path | None = None, environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
    """Reads the settings file (if there is one), then the environment, then the caller's own values."""
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
        raise UsageError(f"setting {key!r} is wrong", got=got, expected=_expected(error)) from None
    _check_urls(settings)
    _check_access(settings)
    _check_replication(settings)
    _check_spark(settings)
    _check_console(settings)
    return settings


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
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
    """Values are text as it is; a table, like ``users``, is a JSON object."""
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
    known = Settings.__struct_fields__
    if key in known:
        return
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"settings are: {', '.join(known)}"
    raise UsageError(f"unknown setting {key!r}", hint=hint)


def _expected(error: msgspec.ValidationError) -> str:
    text = str(error).partition(" - at ")[0]
    return text.removeprefix("Expected ").partition(", got")[0]


def _check_access(settings: Settings) -> None:
    """What would otherwise show only as a log that does not answer."""
    user = settings.log_user
    if settings.embedded is not None and user and user not in settings.users:
        raise UsageError(
            "setting 'log_user' is no user of the embedded log", got=repr(user), expected="a name in 'users'"
        )
    if settings.embedded is None and bool(user) != bool(settings.log_password):
        raise UsageError("settings 'log_user' and 'log_password' belong together", got="only one of them")
    if settings.log_ca and not Path(settings.log_ca).is_file():
        raise UsageError("setting 'log_ca' names no file", got=repr(settings.log_ca))
    if settings.log_ca and not settings.access.tls and "security.protocol" not in settings.log_options:
        raise UsageError(
            "setting 'log_ca' has no effect", got="a log without TLS", hint='write log = "kafkas://…"'
        )


def _check_console(settings: Settings) -> None:
    if 0 < len(settings.console_token) < TOKEN_MIN:
        raise UsageError(
            "setting 'console_token' is too short",
            got=f"{len(settings.console_token)} characters",
            expected=f"{TOKEN_MIN} or more, by chance: openssl rand -hex 16",
        )


def _check_replication(settings: Settings) -> None:
    if settings.replication == 0:
        raise UsageError("setting 'replication' is wrong", got="0", expected="-1, or 1 and more")
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
    schemes = {
        "log": ("embedded:", "kafka://", "kafkas://"),
        "spark": ("local", "spark://"),
        "store": ("sqlite:",),
    }
    for key, prefixes in schemes.items():
        value = getattr(settings, key)
        if not value.startswith(prefixes):
            raise UsageError(
                f"setting {key!r} is wrong", got=repr(value), expected=" or ".join(f"{p}…" for p in prefixes)
            )
