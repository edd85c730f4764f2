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
from headwater.sink.effect import Again, Dead, Done, Effect, Mode, Outcome, Start, check_telling
from headwater.sink.outbox import Outbox, Telling
from headwater.sink.store import Feed

__all__ = ["Mail"]

TIMEOUT_SECONDS = 30.0
CONCURRENCY = 2
PERMANENT = 500
"""Answers from here on mean: never."""


@dataclass(frozen=True)
class Mail(Telling):
    """``hw.sink.Mail("mail.example.com", to="{email}", subject="Order {id}", body="…", sender="shop@example.com")``.

    ``to``, ``subject`` and ``body`` are templates: ``{name}`` is a column of the row and ``{total:.2f}`` one with a format; nothing else
    is looked up, and a value can add neither a recipient nor a header. Deleted rows are not told of. ``tls`` is ``starttls``, ``tls`` or
    empty; a password goes only over TLS.
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
            raise UsageError(
                "a mail needs somebody to go to", expected='to="{email}" or to="desk@example.com"'
            )
        _address(self.sender, "sender")
        if self.tls not in {"", "starttls", "tls"}:
            raise UsageError("a mail's tls is wrong", got=repr(self.tls), expected="starttls, tls or empty")
        if self.user and not self.tls:
            raise UsageError("a password for mail goes only over TLS", expected='tls="starttls" or tls="tls"')
        for template in (*self.recipients, self.subject, self.body):
            fields(template)
        check_telling(self.mode, self.start)

    @property
    def kind(self) -> str:
        return "mail"

    @property
    def recipients(self) -> tuple[str, ...]:
        return (self.to,) if isinstance(self.to, str) else tuple(self.to)

    def check(self, feed: Feed) -> None:
        """The templates name columns that there are."""
        known = feed.columns.keys() | set(feed.key)
        for template in (*self.recipients, self.subject, self.body):
            unknown = [name for name in fields(template) if name not in known]
            if unknown:
                raise UsageError(
                    f"a mail of {feed.topic!r} names a column that is not there",
                    got=", ".join(unknown),
                    expected=", ".join(sorted(known)),
                )

    def open(self, feed: Feed) -> Outbox:
        return Outbox(
            feed,
            Postman(self),
            mode=self.mode,
            start=self.start,
            concurrency=self.concurrency,
            clock=self.clock,
        )


class Postman:
    """Carries effects to a mail server, each over a connection of its own."""

    def __init__(self, mail: Mail) -> None:
        self._mail = mail
        self.name = f"mail by {mail.host}"
        self.patience_s = 3 * mail.timeout_s

    def wants(self, effect: Effect) -> bool:
        return not effect.deleted

    def carry(self, effect: Effect) -> Outcome:
        try:
            message, to = self._written(effect)
        except Exception as error:  # noqa: BLE001  whatever is wrong with the row will be wrong again
            return Dead(f"it cannot be written: {type(error).__name__}: {error}")
        try:
            self._send(message, to)
        except smtplib.SMTPRecipientsRefused as error:
            return _refused(max(code for code, _ in error.recipients.values()), "a recipient is refused")
        except smtplib.SMTPDataError as error:
            return _refused(error.smtp_code, "the mail is refused")
        except smtplib.SMTPResponseException as error:  # of the server or our account: no fault of this mail
            return Again(f"answer {error.smtp_code}")
        except (OSError, smtplib.SMTPException) as error:
            return Again(f"no connection ({type(error).__name__})")
        return Done()

    def close(self) -> None:
        """Nothing is kept."""

    def _written(self, effect: Effect) -> tuple[EmailMessage, list[str]]:
        mail, row = self._mail, effect.row
        to = [_address(rendered(template, row), "to") for template in mail.recipients]
        message = EmailMessage(policy=WIRE)
        message["From"] = mail.sender
        message["To"] = ", ".join(to)
        message["Subject"] = rendered(mail.subject, row)
        message["Date"] = datetime.fromtimestamp(effect.timestamp_ms / 1000, UTC)
        message["Message-ID"] = f"<{effect.id}@{mail.sender.rpartition('@')[2]}>"
        message["Auto-Submitted"] = "auto-generated"
        message["X-Headwater-Mode"] = effect.mode
        message.set_content(rendered(mail.body, row))
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
                server.quit()  # it has answered: whatever happens to the connection now, the mail is there or is not


def fields(template: str) -> list[str]:
    """The columns that a template names. UsageError when it wants more than columns."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise UsageError(f"a mail's template is wrong: {error}", got=repr(template)) from error
    found = []
    for _, name, form, conversion in parts:
        if name is None:
            continue
        if not name.isidentifier() or conversion or "{" in (form or ""):
            raise UsageError(
                "a mail's template may only name columns",
                got=repr(template),
                expected="{column} or {column:format}",
            )
        found.append(name)
    return found


def rendered(template: str, row: Mapping[str, Any]) -> str:
    """The template with the columns of a row; one that is null is empty. KeyError or ValueError where that cannot be."""
    text = []
    for literal, name, form, _ in string.Formatter().parse(template):
        text.append(literal)
        if name is not None:
            value = row[name]
            text.append("" if value is None else format(value, form or "") if form else str(value))
    return "".join(text)


def _address(text: str, what: str) -> str:
    """One address and nothing else: a value with a comma or a line break is none."""
    try:
        return Address(addr_spec=text.strip()).addr_spec
    except (ValueError, IndexError, AttributeError, MessageError) as error:
        raise UsageError(f"a mail's {what} is no address", got=repr(text)) from error


def _refused(code: int, what: str) -> Outcome:
    return Dead(f"{what}: answer {code}") if code >= PERMANENT else Again(f"{what}: answer {code}")
