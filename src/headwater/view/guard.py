"""AccessGuard: who may ask the console. It checks every request first.

Host     an address, a name of this machine's loopback, or one of the configured names; any other name is
         refused (421). Otherwise a stranger's page could read the rows, by a name of its own that points to
         this machine (DNS rebinding)
token    if one is configured: ``Authorization: Bearer TOKEN``, or the cookie that ``GET /?token=TOKEN`` gives
         a browser; otherwise 401
"""

import hmac
import ipaddress
from collections.abc import Collection
from urllib.parse import parse_qsl, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["AccessGuard"]

COOKIE = "headwater_console"
PARAMETER = "token"
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
MISDIRECTED, UNAUTHORIZED, SEE_OTHER = 421, 401, 303


class AccessGuard:
    """ASGI middleware around all others. It keeps no state between requests."""

    def __init__(self, app: ASGIApp, names: Collection[str] = (), token: str = "") -> None:
        self._app = app
        self._names = {_plain(name) for name in names} - {""}
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(Request(scope)) if scope["type"] == "http" else None
        await (self._app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        host = _name(request.headers.get("host", ""))
        if not self._is_ours(host):
            return _refused(
                MISDIRECTED,
                "the console does not answer under this name",
                got=repr(host[:100]),
                hint="use its address, or name it with the setting console_names",
            )
        if not self._token or self._has_token(request):
            return None
        parameters = parse_qsl(request.url.query, keep_blank_values=True)
        tokens = [value for name, value in parameters if name == PARAMETER]
        if tokens and self._is_token(tokens[-1]):
            return self._admit(request, parameters)
        return _refused(
            UNAUTHORIZED,
            "the console needs a token",
            got="another token" if tokens or "authorization" in request.headers else "no token",
            expected="the header Authorization: Bearer TOKEN, or /?token=TOKEN in a browser",
            hint="the token is the setting console_token",
            **{"WWW-Authenticate": "Bearer"},
        )

    def _is_ours(self, host: str) -> bool:
        if host in self._names or host == "localhost" or host.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True  # an address cannot be made to point elsewhere

    def _has_token(self, request: Request) -> bool:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(token.strip()):
            return True
        return self._is_token(request.cookies.get(COOKIE, ""))

    def _is_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())

    def _admit(self, request: Request, parameters: list[tuple[str, str]]) -> Response:
        """A redirect to the same page without the token in its address, with a cookie instead."""
        rest = urlencode([(name, value) for name, value in parameters if name != PARAMETER])
        path = "/" + request.url.path.lstrip("/")  # two slashes would be another host
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, SEE_OTHER, HEADERS)
        answer.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
        return answer


def _name(host: str) -> str:
    """The name or address of a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return _plain(host.partition(":")[0])


def _plain(name: str) -> str:
    return name.strip().lower().rstrip(".")


def _refused(
    status: int, what: str, *, got: str = "", expected: str = "", hint: str = "", **headers: str
) -> Response:
    fields = {"what": what, "got": got, "expected": expected, "hint": hint}
    body = {"error": f"{what}; got {got}; {hint}", **fields}
    return Response(msgspec.json.encode(body), status, HEADERS | headers, "application/json")
