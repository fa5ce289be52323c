"""Who may speak to the server: pages that it served itself, on this machine or with the token."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
COOKIE = "attnlab-explorer"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """An application behind its checks.

    On loopback the Host header must name this machine, so that a foreign name which resolves to it leads nowhere.
    Elsewhere every request needs the token, in the address or in the cookie that the first one is given. A WebSocket
    must come from a page of this very server: its Origin is the Host that it speaks to.
    """

    def __init__(self, application: Application, token: str | None) -> None:
        self.application = application
        self.token = token

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer, or refuse."""
        if scope["type"] not in ("http", "websocket"):
            await self.application(scope, receive, send)
            return
        refused = self._refusal(scope)
        if refused is not None:
            await _refuse(scope, receive, send, refused)
            return

        async def send_with_headers(sent: MutableMapping[str, Any]) -> None:
            if sent["type"] == "http.response.start":
                added = dict(HEADERS)
                if self.token is not None and _token_in_address(scope) == self.token:
                    added["set-cookie"] = f"{COOKIE}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                sent["headers"] = [*sent["headers"], *((k.encode(), v.encode()) for k, v in added.items())]
            await send(sent)

        await self.application(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> str | None:
        """Why this request is refused; None if it is not."""
        hosts = _header(scope, b"host")
        if len(hosts) != 1:
            return "one Host header is wanted"
        if self.token is None and host_name(hosts[0]) not in LOOPBACK:
            return "the Host header does not name this machine"
        if self.token is not None and not self._has_token(scope):
            return "the token is missing or wrong; open the address that `attnlab explore` printed"
        origins = _header(scope, b"origin")
        own = f"http://{hosts[0]}".lower()
        if scope["type"] == "websocket" and [origin.lower() for origin in origins] != [own]:
            return "the Origin header is not that of a page of this server"
        if scope["type"] == "http" and any(origin.lower() != own for origin in origins):
            return "the Origin header is not that of a page of this server"
        return None

    def _has_token(self, scope: Scope) -> bool:
        assert self.token is not None
        offered = [_token_in_address(scope), _token_in_cookie(scope)]
        return any(secrets.compare_digest(one.encode(), self.token.encode()) for one in offered)


def host_name(host: str) -> str:
    """The name in a Host header, without its port.

    >>> host_name("localhost:80"), host_name("[::1]:80"), host_name("::1")
    ('localhost', '::1', '::1')
    """
    lowered = host.strip().lower()
    if lowered.startswith("["):
        return lowered[1:].partition("]")[0]
    return lowered if lowered.count(":") > 1 else lowered.partition(":")[0]


def _header(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _token_in_address(scope: Scope) -> str:
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    return query.get("token", [""])[0]


def _token_in_cookie(scope: Scope) -> str:
    for text in _header(scope, b"cookie"):
        try:
            cookies = SimpleCookie(text)
        except CookieError:
            continue
        if COOKIE in cookies:
            return cookies[COOKIE].value
    return ""


async def _refuse(scope: Scope, receive: Any, send: Any, why: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": why})  # answered with status 403
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"x-content-type-options", b"nosniff")]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": f"Refused: {why}.\n".encode()})
