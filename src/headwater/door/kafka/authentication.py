"""Authentication: how a connection becomes that of a known user, with SASL PLAIN.

No I/O. Until then only ApiVersions and the requests of SASL are answered. A broker without users lets every
client in.
"""

import enum
import hmac
from collections.abc import Mapping

from headwater.errors import ErrorCode, ProtocolError, RequestError

__all__ = ["MECHANISM", "Authentication"]

MECHANISM = "PLAIN"
ALLOWED_BEFORE = frozenset({17, 18, 36})
"""SaslHandshake, ApiVersions, SaslAuthenticate."""


class Authentication:
    """The authentication of one connection, which owns it."""

    class State(enum.Enum):
        STRANGER = enum.auto()
        HANDSHAKE_DONE = enum.auto()
        EXPECTS_TOKEN = enum.auto()
        KNOWN = enum.auto()

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self.state = self.State.STRANGER if users else self.State.KNOWN

    @property
    def is_known(self) -> bool:
        """Whether the connection may use the broker."""
        return self.state is self.State.KNOWN

    @property
    def expects_token(self) -> bool:
        """Whether the next frame is a bare token (SaslHandshake 0)."""
        return self.state is self.State.EXPECTS_TOKEN

    def check_allowed(self, api_key: int) -> None:
        """Raises ProtocolError for a request that needs authentication first."""
        if self.state is not self.State.KNOWN and api_key not in ALLOWED_BEFORE:
            raise ProtocolError(
                "a client has not authenticated", got=f"API key {api_key}", expected="SASL PLAIN first"
            )

    def handshake(self, mechanism: str, version: int) -> None:
        if mechanism != MECHANISM:
            raise RequestError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"{mechanism!r} is not {MECHANISM}")
        if self.state is not self.State.STRANGER:
            raise RequestError(ErrorCode.ILLEGAL_SASL_STATE)
        self.state = self.State.EXPECTS_TOKEN if version == 0 else self.State.HANDSHAKE_DONE

    def authenticate(self, token: bytes) -> None:
        """Checks PLAIN's token; after a wrong one the handshake has to be repeated."""
        if self.state not in {self.State.HANDSHAKE_DONE, self.State.EXPECTS_TOKEN}:
            raise RequestError(ErrorCode.ILLEGAL_SASL_STATE)
        self.state = self.State.STRANGER
        _, user, password = [*token.split(b"\0"), b"", b"", b""][:3]
        expected = self._users.get(user.decode(errors="replace"))
        if expected is None or not hmac.compare_digest(expected.encode(), password):
            raise RequestError(
                ErrorCode.SASL_AUTHENTICATION_FAILED, "Authentication failed: Invalid username or password"
            )
        self.state = self.State.KNOWN
