"""The address of a MariaDB or MySQL server: ``mysql://user:password@host:3306?ssl-mode=VERIFY_IDENTITY``.

The options have the names and meanings of MySQL's own clients. PyMySQL by itself encrypts if the server
offers it, and does not report it if the server does not.
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
    """A server's address. Creating one checks it and opens nothing; files are read for each connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        try:
            self.port = parts.port or PORT
        except ValueError:  # its text may contain a part of the password
            raise UsageError(
                "the port in the address of a MariaDB source is not a number",
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
        values = options("a MariaDB source", url, OPTIONS)
        self.ca, self._certificate, self._key = (
            values.get(f"ssl-{file}", "") for file in ("ca", "cert", "key")
        )
        self.mode = values.get("ssl-mode", self._implied_mode()).upper().replace("-", "_")
        self._check()

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def _implied_mode(self) -> str:
        """The mode without ssl-mode: an authority, if named, must have signed the server's certificate."""
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
                f"{what}: ssl-cert needs an encrypted connection",
                got=self.mode,
                expected="ssl-mode=REQUIRED",
            )

    def settings(self) -> dict[str, Any]:
        """Arguments for PyMySQL; CaptureError if a file is not a certificate or key."""
        settings = {"host": self.host, "port": self.port, "user": self.user, "password": self.password}
        if self.mode == "DISABLED":
            return settings | {"ssl_disabled": True}
        return settings if self.mode == "PREFERRED" else settings | {"ssl": self._context()}

    def check_connected(self, connection: Any) -> None:
        """CaptureError if a connection is not encrypted as required: drivers have connected without TLS."""
        encrypted = isinstance(connection._sock, ssl.SSLSocket)  # noqa: SLF001
        if self.mode not in {"DISABLED", "PREFERRED"} and not encrypted:
            raise CaptureError(f"the connection to {self} is not encrypted", expected=f"ssl-mode={self.mode}")

    def _context(self) -> ssl.SSLContext:
        for path in filter(None, (self.ca, self._certificate, self._key)):
            if not Path(path).is_file():
                raise CaptureError(f"the database at {self}: a file of its address is missing", got=path)
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            # The authorities that servers create for themselves do not pass the strict check.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            context.check_hostname = self.mode == "VERIFY_IDENTITY"
            context.verify_mode = ssl.CERT_REQUIRED if self.mode in VERIFYING else ssl.CERT_NONE
            if self._certificate:
                context.load_cert_chain(self._certificate, self._key)
        except ssl.SSLError as error:
            raise CaptureError(
                f"the database at {self}: ssl-ca, ssl-cert or ssl-key is not a PEM file", got=str(error)
            ) from error
        return context
