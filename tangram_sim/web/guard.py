"""Who may ask: this machine's page alone, with its token, in requests of ordinary size."""

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
    """A request's body goes on beyond the limit."""


@dataclass(frozen=True, slots=True)
class Guard:
    """An app behind the checks: host and origin are `hosts` of ours, `/api/` asks for the token.

    The host is checked because a name that resolves to this machine makes any page "same origin" (DNS
    rebinding); the origin because browsers send requests for pages of others; the token because other users
    of the machine reach the port, too.
    """

    app: App
    token: str
    hosts: frozenset[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
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
        """(status, why) of a request that is refused; (0, "") of others."""
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
    """Whether a person comes to the empty page by a link from elsewhere, as from the file that is opened."""
    place = (scope.get("method"), scope["path"])
    return place == ("GET", "/") and headers.get("sec-fetch-dest") == "document"


def _measured(receive: Receive) -> Receive:
    """`receive` with a count: raises BodyTooLongError where the body is longer than a body may be."""
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
