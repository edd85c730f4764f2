"""Mail: each change as a mail, by SMTP."""

import contextlib
import smtplib
import ssl
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP as WIRE
from typing import Any, Literal

from headwater.clock import Clock
from headwater.errors import UsageError
from headwater.sink.effects.effect import (
    Dead,
    Delivered,
    Effect,
    Mode,
    Outcome,
    Retry,
    Start,
    check_options,
)
from headwater.sink.effects.effect_store import EffectStore, EffectTarget
from headwater.sink.store import SinkFeed

__all__ = ["Mail"]

TIMEOUT_SECONDS = 30.0
CONCURRENCY = 2
PERMANENT = 500
"""Answer codes from here on are permanent refusals."""


@dataclass(frozen=True)
class Mail(EffectTarget):
    """A mail for each change.

    ``hw.sink.Mail("mail.example.com", to="{email}", subject="Order {id}", body="…",
    sender="shop@example.com")``

    ``to``, ``subject`` and ``body`` are templates: ``{name}`` is a column of the row, ``{total:.2f}`` a
    column with a format. Nothing else is evaluated, and a value can add neither a recipient nor a header.
    Deleted rows are not mailed. ``tls`` is ``starttls``, ``tls`` or empty; a password is sent only over
    TLS.
    """

    host: str
    port: int = 25
    to: str | Sequence[str] = ()
    subject: str = ""
    body: str = ""
    sender: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    tls: Literal["", "starttls", "tls"] = ""
    mode: Mode = "live"
    timeout_s: float = TIMEOUT_SECONDS
    concurrency: int = CONCURRENCY
    start: Start = "now"
    clock: Clock | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.recipients:
            raise UsageError("a mail needs a recipient", expected='to="{email}" or to="desk@example.com"')
        _address(self.sender, "sender")
        if self.tls not in {"", "starttls", "tls"}:
            raise UsageError("a mail's tls is wrong", got=repr(self.tls), expected="starttls, tls or empty")
        if self.user and not self.tls:
            raise UsageError(
                "a password for mail is sent only over TLS", expected='tls="starttls" or tls="tls"'
            )
        for template in (*self.recipients, self.subject, self.body):
            fields(template)
        check_options(self.mode, self.start)

    @property
    def kind(self) -> str:
        return "mail"

    @property
    def recipients(self) -> tuple[str, ...]:
        return (self.to,) if isinstance(self.to, str) else tuple(self.to)

    def check(self, feed: SinkFeed) -> None:
        """UsageError if a template names a column that does not exist."""
        columns = feed.columns.keys() | set(feed.key)
        for template in (*self.recipients, self.subject, self.body):
            unknown = [name for name in fields(template) if name not in columns]
            if unknown:
                raise UsageError(
                    f"a mail of {feed.topic!r} names an unknown column",
                    got=", ".join(unknown),
                    expected=", ".join(sorted(columns)),
                )

    def open(self, feed: SinkFeed) -> EffectStore:
        return EffectStore(
            feed,
            Postman(self),
            mode=self.mode,
            start=self.start,
            concurrency=self.concurrency,
            clock=self.clock,
        )


class Postman:
    """Delivers effects to a mail server, each over a separate connection."""

    def __init__(self, mail: Mail) -> None:
        self._mail = mail
        self.name = f"mail by {mail.host}"
        self.patience_s = 3 * mail.timeout_s

    def wants(self, effect: Effect) -> bool:
        return not effect.deleted

    def deliver(self, effect: Effect) -> Outcome:
        try:
            message, to = self._written(effect)
        except Exception as error:  # noqa: BLE001  a fault of the row is permanent
            return Dead(f"it cannot be written: {type(error).__name__}: {error}")
        try:
            self._send(message, to)
        except smtplib.SMTPRecipientsRefused as error:
            return _refused(max(code for code, _ in error.recipients.values()), "a recipient is refused")
        except smtplib.SMTPDataError as error:
            return _refused(error.smtp_code, "the mail is refused")
        except (
            smtplib.SMTPResponseException
        ) as error:  # a fault of the server or our account, not of the mail
            return Retry(f"answer {error.smtp_code}")
        except (OSError, smtplib.SMTPException) as error:
            return Retry(f"no connection ({type(error).__name__})")
        return Delivered()

    def close(self) -> None:
        """Nothing is open."""

    def _written(self, effect: Effect) -> tuple[EmailMessage, list[str]]:
        mail, row = self._mail, effect.row
        to = [_address(render(template, row), "to") for template in mail.recipients]
        message = EmailMessage(policy=WIRE)
        message["From"] = mail.sender
        message["To"] = ", ".join(to)
        message["Subject"] = render(mail.subject, row)
        message["Date"] = datetime.fromtimestamp(effect.timestamp_ms / 1000, UTC)
        message["Message-ID"] = f"<{effect.id}@{mail.sender.rpartition('@')[2]}>"
        message["Auto-Submitted"] = "auto-generated"
        message["X-Headwater-Mode"] = effect.mode
        message.set_content(render(mail.body, row))
        return message, to

    def _send(self, message: EmailMessage, to: Sequence[str]) -> None:
        mail = self._mail
        context = ssl.create_default_context() if mail.tls else None
        if mail.tls == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                mail.host, mail.port, timeout=mail.timeout_s, context=context
            )
        else:
            server = smtplib.SMTP(mail.host, mail.port, timeout=mail.timeout_s)
        try:
            if mail.tls == "starttls":
                server.starttls(context=context)
            if mail.user:
                server.login(mail.user, mail.password)
            server.send_message(message, mail.sender, list(to))
        finally:
            with contextlib.suppress(OSError, smtplib.SMTPException):
                server.quit()  # it has answered: a fault of the connection does not change the outcome


def fields(template: str) -> list[str]:
    """The columns that a template names. UsageError if it names anything else."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise UsageError(f"a mail's template is wrong: {error}", got=repr(template)) from error
    names = []
    for _, name, form, conversion in parts:
        if name is None:
            continue
        if not name.isidentifier() or conversion or "{" in (form or ""):
            raise UsageError(
                "a mail's template may only name columns",
                got=repr(template),
                expected="{column} or {column:format}",
            )
        names.append(name)
    return names


def render(template: str, row: Mapping[str, Any]) -> str:
    """The template with the columns of a row; a null is empty.

    KeyError or ValueError if that is impossible.
    """
    text = []
    for literal, name, form, _ in string.Formatter().parse(template):
        text.append(literal)
        if name is not None:
            value = row[name]
            text.append("" if value is None else format(value, form or "") if form else str(value))
    return "".join(text)


def _address(text: str, what: str) -> str:
    """A single address: a value with a comma or a line break is refused."""
    try:
        return Address(addr_spec=text.strip()).addr_spec
    except (ValueError, IndexError, AttributeError, MessageError) as error:
        raise UsageError(f"a mail's {what} is not an address", got=repr(text)) from error


def _refused(code: int, what: str) -> Outcome:
    return Dead(f"{what}: answer {code}") if code >= PERMANENT else Retry(f"{what}: answer {code}")
