"""SCRAM: a user proves a password without sending it, and the server that it knows it (RFC 5802). No I/O."""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Any

from headwater.errors import MachineError

__all__ = ["DIGESTS", "Talk"]

DIGESTS: dict[str, Callable[..., Any]] = {"SCRAM-SHA-256": hashlib.sha256, "SCRAM-SHA-512": hashlib.sha512}
HEAD = "n,,"
"""No channel is bound, nobody else is spoken for."""


class Talk:
    """One authentication: ``first`` is said, then ``final`` to what was answered, and what is answered to that is checked."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str = "") -> None:
        self._digest = DIGESTS[mechanism]
        self._password = password
        self._nonce = nonce or secrets.token_urlsafe(24)
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}"
        self._signature = b""

    @property
    def first(self) -> bytes:
        return f"{HEAD}{self._bare}".encode()

    def final(self, heard: bytes) -> bytes:
        """The proof, for the salt and the nonce that the server has named."""
        told = dict(part.split("=", 1) for part in heard.decode().split(","))
        if not told.get("r", "").startswith(self._nonce):
            raise MachineError("the log answers somebody else's authentication", got=heard.decode()[:60])
        salted = hashlib.pbkdf2_hmac(
            self._digest().name, self._password.encode(), base64.b64decode(told["s"]), int(told["i"])
        )
        bare = f"c={base64.b64encode(HEAD.encode()).decode()},r={told['r']}"
        signed = f"{self._bare},{heard.decode()},{bare}".encode()
        key = self._sign(salted, b"Client Key")
        proof = bytes(a ^ b for a, b in zip(key, self._sign(self._digest(key).digest(), signed), strict=True))
        self._signature = self._sign(self._sign(salted, b"Server Key"), signed)
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()

    def check(self, heard: bytes) -> None:
        """Raises MachineError if the server does not know the password."""
        if heard.split(b",")[0] != b"v=" + base64.b64encode(self._signature):
            raise MachineError(
                "the log does not know the password that it accepts: it is not the one it says"
            )

    def _sign(self, key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, self._digest().name)
