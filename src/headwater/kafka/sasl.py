"""SaslHandshake, SaslAuthenticate: who is at the other end of a connection.

SaslHandshake 0-1       PLAIN only; after version 0 the token follows as a frame of its own, without a header
SaslAuthenticate 0-2    PLAIN's token: nothing, user, password, with zero bytes between

Until a connection has said who it is, nothing else but ApiVersions is answered. Where the broker has no users, everybody is welcome.
"""

import enum
import hmac
from collections.abc import Mapping

from headwater.errors import ErrorCode, ProtocolError, Refused
from headwater.kafka.api import Answer, Request, serves
from headwater.kafka.codec import layout

__all__ = ["Authentication"]

MECHANISM = "PLAIN"
ALLOWED_BEFORE = frozenset({17, 18, 36})
"""SaslHandshake, ApiVersions, SaslAuthenticate."""

_handshaken = layout("SaslHandshake", "response")
_authenticated = layout("SaslAuthenticate", "response")


class Authentication:
    """One connection's way from stranger to user. No I/O; the connection owns it."""

    class State(enum.Enum):
        STRANGER = enum.auto()
        HANDSHAKEN = enum.auto()
        EXPECTING_TOKEN = enum.auto()
        KNOWN = enum.auto()

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self.state = self.State.STRANGER if users else self.State.KNOWN

    @property
    def is_known(self) -> bool:
        """Whether it may use the broker."""
        return self.state is self.State.KNOWN

    @property
    def expects_token(self) -> bool:
        """Whether the next frame is a bare token (SaslHandshake 0)."""
        return self.state is self.State.EXPECTING_TOKEN

    def check_allowed(self, api_key: int) -> None:
        """Raises ProtocolError for a request that only users may send."""
        if self.state is not self.State.KNOWN and api_key not in ALLOWED_BEFORE:
            raise ProtocolError(
                "a client has not authenticated", got=f"API key {api_key}", expected="SASL PLAIN first"
            )

    def handshake(self, mechanism: str, version: int) -> None:
        if mechanism != MECHANISM:
            raise Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"{mechanism!r} is not {MECHANISM}")
        if self.state is not self.State.STRANGER:
            raise Refused(ErrorCode.ILLEGAL_SASL_STATE)
        self.state = self.State.EXPECTING_TOKEN if version == 0 else self.State.HANDSHAKEN

    def authenticate(self, token: bytes) -> None:
        """Takes PLAIN's token; a wrong one leaves a stranger."""
        if self.state not in {self.State.HANDSHAKEN, self.State.EXPECTING_TOKEN}:
            raise Refused(ErrorCode.ILLEGAL_SASL_STATE)
        self.state = self.State.STRANGER
        _, user, password = [*token.split(b"\0"), b"", b"", b""][:3]
        known = self._users.get(user.decode(errors="replace"))
        if known is None or not hmac.compare_digest(known.encode(), password):
            raise Refused(
                ErrorCode.SASL_AUTHENTICATION_FAILED, "Authentication failed: Invalid username or password"
            )
        self.state = self.State.KNOWN


@serves("SaslHandshake", 0, 1)
def handshake(request: Request) -> Answer:
    try:
        request.authentication.handshake(request.body.mechanism, request.version)
    except Refused as refused:
        return _handshaken.struct()(error_code=refused.code, mechanisms=[MECHANISM])
    return _handshaken.struct()(mechanisms=[MECHANISM])


@serves("SaslAuthenticate", 0, 2)
def authenticate(request: Request) -> Answer:
    try:
        request.authentication.authenticate(request.body.auth_bytes)
    except Refused as refused:
        return _authenticated.struct()(error_code=refused.code, error_message=str(refused))
    return _authenticated.struct()(error_message=None)
