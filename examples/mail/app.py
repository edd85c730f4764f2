"""Mail: what a program has written is sent by SMTP, tried again while the server is away, and given up with a reason.

headwater up examples/mail/app.py
"""

import os
import smtplib
from email.message import EmailMessage

import headwater as hw

SERVER = os.environ.get("MAIL_SERVER", "localhost:1025")

app = hw.App("post")


class Mail(hw.Event):
    to: str
    subject: str
    text: str


app.stream("mails", Mail, key="to", time=hw.ARRIVAL)


@app.worker(
    "mails",
    concurrency=16,
    timeout="30 seconds",
    retry=hw.backoff("1s", factor=2, longest="5 minutes", attempts=8),
)
def send(mail: Mail, ctx: hw.Work) -> None:
    """The same Message-ID in each attempt lets a server recognize a mail that it has already."""
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "shop@example.org", mail.to, mail.subject
    message["Message-ID"] = f"<{ctx.id}@example.org>"
    message.set_content(mail.text)
    host, _, port = SERVER.partition(":")
    try:
        with smtplib.SMTP(host, int(port), timeout=10) as server:
            server.send_message(message)
    except smtplib.SMTPRecipientsRefused as error:
        ((code, text),) = error.recipients.values()
        if code >= 500:  # for good, says SMTP
            raise hw.RejectError(f"{mail.to} is refused: {code} {text.decode()}") from error
        raise
