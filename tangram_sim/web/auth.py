"""Access checks on requests: right host and origin, the access token, and a body that is not too long."""

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_BODY_BYTES = 64 << 20
TOKEN_HEADER = "x-tangram-token"
_HEADERS = [
    (b"content-security-policy", b"default-src 'self'; img-src 'self' data:; base-uri 'none'; "
     b"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]  # fmt: skip


class BodyTooLongError(Exception):
    """The body of a request is longer than allowed."""


@dataclass(frozen=True, slots=True)
class Guard:
    """ASGI wrapper of `app` that refuses requests from elsewhere; paths under `/api/` need the `token`.

    The Host header must be one of `hosts`, because a foreign name that resolves to this machine would make
    its page "same origin" (DNS rebinding). The Origin header must be too, because browsers also send requests
    for pages of other sites. The token is needed because other users of the machine can reach the port.
    """

    app: App
    token: str
    hosts: frozenset[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the app, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        status, why = self._objection(scope, headers)
        if status:
            await _refuse(send, status, why)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        await self.app(scope, _measured(receive), with_headers)

    def _objection(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str]:
        """(HTTP status, reason) if the request is to be refused; (0, "") if it is allowed."""
        if headers.get("host", "") not in self.hosts:
            return 421, "this page answers under its own address only"
        origin = headers.get("origin")
        if origin is not None and origin.removeprefix("http://") not in self.hosts:
            return 403, "a page of another origin asked"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none") and not _arrives(
            scope, headers
        ):
            return 403, "a page of another site asked"
        if scope["path"].startswith("/api/"):
            given = headers.get(TOKEN_HEADER, "")
            if not secrets.compare_digest(given.encode(), self.token.encode()):
                return 401, "the token is missing or wrong: open the address that `tangram web` printed"
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MOST_BODY_BYTES:
            return 413, f"a request holds {MOST_BODY_BYTES >> 20} MiB at most"
        return 0, ""


def _arrives(scope: Scope, headers: dict[str, str]) -> bool:
    """Whether the request only opens the start page by a link from elsewhere, as from the redirect file."""
    place = (scope.get("method"), scope["path"])
    return place == ("GET", "/") and headers.get("sec-fetch-dest") == "document"


def _measured(receive: Receive) -> Receive:
    """`receive`, but raising BodyTooLongError once the body exceeds MOST_BODY_BYTES."""
    held = 0

    async def checked() -> Message:
        nonlocal held
        message = await receive()
        held += len(message.get("body", b""))
        if held > MOST_BODY_BYTES:
            raise BodyTooLongError
        return message

    return checked


async def _refuse(send: Send, status: int, why: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": why.encode()})
