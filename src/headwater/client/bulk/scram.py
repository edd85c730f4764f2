"""SCRAM: a client proves that it knows a password without sending it, and so does the server (RFC 5802).

No I/O.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Any

from headwater.errors import MachineError

__all__ = ["DIGESTS", "ScramClient"]

DIGESTS: dict[str, Callable[..., Any]] = {"SCRAM-SHA-256": hashlib.sha256, "SCRAM-SHA-512": hashlib.sha512}
HEAD = "n,,"
"""No channel binding, no other identity."""


class ScramClient:
    """One authentication: send ``first``, then ``final`` of its answer; ``check`` the answer to that."""

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

    def final(self, answer: bytes) -> bytes:
        """The proof, for the salt and the nonce in the server's first answer."""
        fields = dict(part.split("=", 1) for part in answer.decode().split(","))
        if not fields.get("r", "").startswith(self._nonce):
            raise MachineError("the log answers another client's authentication", got=answer.decode()[:60])
        salted = hashlib.pbkdf2_hmac(
            self._digest().name, self._password.encode(), base64.b64decode(fields["s"]), int(fields["i"])
        )
        bare = f"c={base64.b64encode(HEAD.encode()).decode()},r={fields['r']}"
        signed = f"{self._bare},{answer.decode()},{bare}".encode()
        key = self._sign(salted, b"Client Key")
        proof = bytes(a ^ b for a, b in zip(key, self._sign(self._digest(key).digest(), signed), strict=True))
        self._signature = self._sign(self._sign(salted, b"Server Key"), signed)
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()

    def check(self, answer: bytes) -> None:
        """Raises MachineError if the server does not know the password."""
        if answer.split(b",")[0] != b"v=" + base64.b64encode(self._signature):
            raise MachineError(
                "the log accepts the password but does not know it: it is not the server that it claims to be"
            )

    def _sign(self, key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, self._digest().name)
