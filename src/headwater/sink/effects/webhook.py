"""Webhook: each change as a signed HTTP call, as in Standard Webhooks (standardwebhooks.com)."""

import contextlib
import email.utils
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec

from headwater.clock import Clock, SystemClock
from headwater.errors import UsageError
from headwater.sink.effects.effect import (
    Delivered,
    Effect,
    Gone,
    Mode,
    Outcome,
    Retry,
    Start,
    check_options,
)
from headwater.sink.effects.effect_store import EffectStore, EffectTarget
from headwater.sink.store import SinkFeed

__all__ = ["Webhook"]

TIMEOUT_SECONDS = 15.0
CONCURRENCY = 8
ANSWER_BYTES_MAX = 65_536
"""The part of an answer's body that is read so that the connection can be used again; its content is
ignored."""
GONE = 410
AGENT = "headwater"


@dataclass(frozen=True)
class Webhook(EffectTarget):
    """Posts each change to an address, signed, until the answer is a 2xx: ``hw.sink.Webhook(url, secret)``.

    ``secret`` is one of Standard Webhooks (``whsec_`` and base64), or several: while one replaces another,
    calls are signed with both. Without a secret, calls are not signed. Neither the secrets nor more of the
    address than its host is ever printed.
    """

    url: str = field(repr=False)
    secret: str | Sequence[str] = field(default="", repr=False)
    mode: Mode = "live"
    timeout_s: float = TIMEOUT_SECONDS
    concurrency: int = CONCURRENCY
    start: Start = "now"
    clock: Clock | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError("a webhook needs an address", expected="https://host/path")
        if self.timeout_s <= 0 or self.concurrency < 1:
            raise UsageError("a webhook needs a timeout_s above 0 and a concurrency of at least 1")
        check_options(self.mode, self.start)

    @property
    def kind(self) -> str:
        return "webhook"

    def check(self, feed: SinkFeed) -> None:
        """Every change can be posted: only the secrets and the packages are checked."""
        del feed
        _signers(self.secret)
        _httpx()

    def open(self, feed: SinkFeed) -> EffectStore:
        clock = self.clock or SystemClock()
        poster = Poster(self.url, self.secret, self.timeout_s, self.concurrency, clock)
        return EffectStore(
            feed, poster, mode=self.mode, start=self.start, concurrency=self.concurrency, clock=clock
        )


class Poster:
    """Delivers effects to an address.

    It uses httpx's transport: httpx's client would use cookies and proxies, and log the address.
    """

    def __init__(
        self, url: str, secret: str | Sequence[str], timeout_s: float, connections: int, clock: Clock
    ) -> None:
        self._httpx = _httpx()
        self._signers = _signers(secret)
        self._url = url
        self._timeout_s = timeout_s
        self._clock = clock
        self._elapsed = SystemClock()
        limits = self._httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        self._transport = self._httpx.HTTPTransport(limits=limits)
        self.name = f"webhook at {urlsplit(url).hostname}"
        self.patience_s = 3 * timeout_s

    def wants(self, effect: Effect) -> bool:  # noqa: ARG002  a receiver gets all
        return True

    def deliver(self, effect: Effect) -> Outcome:
        request = self._request(effect)
        try:
            status, retry_after = self._post(request)
        except self._httpx.TimeoutException:
            return Retry(f"no answer within {self._timeout_s:g} s")
        except self._httpx.TransportError as error:
            return Retry(f"no connection ({type(error).__name__})")
        if 200 <= status < 300:
            return Delivered()
        if status == GONE:
            return Gone("it answered 410 Gone")
        return Retry(f"status {status}", self._seconds(retry_after))

    def close(self) -> None:
        self._transport.close()

    def _request(self, effect: Effect) -> Any:
        body = _body(effect)
        now_s = self._clock.now_ms() // 1000
        headers = {
            "content-type": "application/json",
            "user-agent": AGENT,
            "webhook-id": effect.id,
            "webhook-timestamp": str(now_s),
        }
        if self._signers:
            at, text = datetime.fromtimestamp(now_s, UTC), body.decode()
            headers["webhook-signature"] = " ".join(
                signer.sign(msg_id=effect.id, timestamp=at, data=text) for signer in self._signers
            )
        timeout = dict.fromkeys(("connect", "read", "write", "pool"), self._timeout_s)
        return self._httpx.Request(
            "POST", self._url, headers=headers, content=body, extensions={"timeout": timeout}
        )

    def _post(self, request: Any) -> tuple[int, str]:
        limit = self._elapsed.monotonic() + self._timeout_s
        response = self._transport.handle_request(request)
        read = 0
        with contextlib.closing(response), contextlib.suppress(self._httpx.TransportError):
            for chunk in response.stream:  # the status is what counts, and it is there
                read += len(chunk)
                if read > ANSWER_BYTES_MAX or self._elapsed.monotonic() > limit:
                    break
        return response.status_code, response.headers.get("retry-after", "")

    def _seconds(self, asked: str) -> float:
        """The pause of a Retry-After header: seconds, or a date."""
        if asked.isdigit():
            return float(asked[:9])
        try:
            at = email.utils.parsedate_to_datetime(asked)
        except ValueError:
            return 0.0
        return max(0.0, at.timestamp() - self._clock.now_ms() / 1000)


def _body(effect: Effect) -> bytes:
    at = datetime.fromtimestamp(effect.timestamp_ms / 1000, UTC).isoformat().replace("+00:00", "Z")
    return msgspec.json.encode(
        {"type": effect.type, "timestamp": at, "data": effect.row, "mode": effect.mode}
    )


def _signers(secret: str | Sequence[str]) -> list[Any]:
    """A signer for each secret. UsageError, without the secret, if one is not a secret."""
    secrets = [secret] if isinstance(secret, str) else list(secret)
    if secrets == [""]:
        return []
    try:
        from standardwebhooks import Webhook as Signer  # noqa: PLC0415  optional
    except ImportError as error:
        raise _missing() from error
    with contextlib.suppress(Exception):  # its message may contain the secret
        return [Signer(text) for text in secrets]
    raise UsageError(
        "a webhook's secret is wrong", expected="whsec_ and base64, as openssl rand -base64 32 makes it"
    )


def _httpx() -> Any:
    try:
        import httpx  # noqa: PLC0415  optional
    except ImportError as error:
        raise _missing() from error
    return httpx


def _missing() -> UsageError:
    return UsageError(
        "hw.sink.Webhook needs packages that are not installed", hint="pip install headwater[webhook]"
    )
