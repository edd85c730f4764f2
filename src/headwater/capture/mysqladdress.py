"""Where a MariaDB or MySQL server is, and whether the way to it is encrypted, from ``mysql://user:password@host:3306?ssl-mode=VERIFY_IDENTITY``.

The options are those that MySQL's own clients have under these names. PyMySQL on its own encrypts where the server offers it, and says nothing
where it does not.
"""

import ssl
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from headwater.address import options
from headwater.errors import CaptureError, UsageError

__all__ = ["Address"]

PORT: Final = 3306
OPTIONS: Final = ("ssl-mode", "ssl-ca", "ssl-cert", "ssl-key")
MODES: Final = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
VERIFYING: Final = ("VERIFY_CA", "VERIFY_IDENTITY")


class Address:
    """A server's address, checked; nothing is opened, and files are read when a connection needs them."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        try:
            self.port = parts.port or PORT
        except ValueError:  # which quotes what may be a part of the password
            raise UsageError(
                "a MariaDB source has an address without a port that is a number",
                expected="mysql://user:password@host:3306",
                hint="in a password write / as %2F, ? as %3F and # as %23",
            ) from None
        if parts.scheme not in {"mysql", "mariadb"} or not parts.hostname:
            raise UsageError(
                "a MariaDB source has an unknown address", got=parts.scheme, expected="mysql://user@host:port"
            )
        self.host = parts.hostname
        self.user = unquote(parts.username or "")
        self.password = unquote(parts.password or "")
        given = options("a MariaDB source", url, OPTIONS)
        self.ca, self._certificate, self._key = (
            given.get(f"ssl-{each}", "") for each in ("ca", "cert", "key")
        )
        self.mode = given.get("ssl-mode", self._implied()).upper().replace("-", "_")
        self._check()

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def _implied(self) -> str:
        """Who names an authority wants the server to have a certificate of it."""
        if self.ca:
            return "VERIFY_IDENTITY"
        return "REQUIRED" if self._certificate else "PREFERRED"

    def _check(self) -> None:
        what = "a MariaDB source"
        if self.mode not in MODES:
            raise UsageError(
                f"{what}: ssl-mode is wrong", got=repr(self.mode), expected=f"of {', '.join(MODES)}"
            )
        if self.ca and self.mode not in VERIFYING:
            raise UsageError(
                f"{what}: ssl-ca has no effect with this ssl-mode",
                got=self.mode,
                expected=" or ".join(VERIFYING),
            )
        if bool(self._certificate) != bool(self._key):
            raise UsageError(f"{what}: ssl-cert and ssl-key belong together", got="only one of them")
        if self._certificate and self.mode in {"DISABLED", "PREFERRED"}:
            raise UsageError(
                f"{what}: ssl-cert needs a connection that is encrypted",
                got=self.mode,
                expected="ssl-mode=REQUIRED",
            )

    def settings(self) -> dict[str, Any]:
        """What PyMySQL is to be given; CaptureError for files that are no certificates."""
        found = {"host": self.host, "port": self.port, "user": self.user, "password": self.password}
        if self.mode == "DISABLED":
            return found | {"ssl_disabled": True}
        return found if self.mode == "PREFERRED" else found | {"ssl": self._context()}

    def check_connected(self, connection: Any) -> None:
        """Whether a connection is as safe as it was meant to be: drivers have passed over servers without TLS."""
        if self.mode not in {"DISABLED", "PREFERRED"} and not isinstance(connection._sock, ssl.SSLSocket):  # noqa: SLF001
            raise CaptureError(f"the connection to {self} is not encrypted", expected=f"ssl-mode={self.mode}")

    def _context(self) -> ssl.SSLContext:
        for path in filter(None, (self.ca, self._certificate, self._key)):
            if not Path(path).is_file():
                raise CaptureError(f"the database at {self}: a file of its address is missing", got=path)
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            context.verify_flags &= (
                ~ssl.VERIFY_X509_STRICT
            )  # the authorities that servers make for themselves are not
            context.check_hostname = self.mode == "VERIFY_IDENTITY"
            context.verify_mode = ssl.CERT_REQUIRED if self.mode in VERIFYING else ssl.CERT_NONE
            if self._certificate:
                context.load_cert_chain(self._certificate, self._key)
        except ssl.SSLError as error:
            raise CaptureError(
                f"the database at {self}: ssl-ca, ssl-cert or ssl-key is no PEM file", got=str(error)
            ) from error
        return context
