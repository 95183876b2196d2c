"""Connections that send no request close the page to nobody, and are closed themselves."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from tests.unit.web.live import LivePage, live_page

_BEGUN = b"GET / HTTP/1.1\r\nHost: "


@pytest.fixture(scope="module")
def served() -> Iterator[LivePage]:
    with live_page() as page:
        yield page


def opened(page: LivePage, sent: bytes) -> socket.socket:
    host, _, port = page.host.partition(":")
    line = socket.create_connection((host, int(port)), timeout=10)
    if sent:
        line.sendall(sent)
    return line


def is_closed(line: socket.socket) -> bool:
    line.settimeout(10)
    try:
        return line.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        _BEGUN,
        b"POST /api/run HTTP/1.1\r\nHost: {host}\r\nx-tangram-token: {token}\r\ncontent-length: 9\r\n\r\n{",
    ],
    ids=["nothing", "half a header", "half a body"],
)
def test_a_hundred_idle_connections_leave_room_for_a_request(served: LivePage, sent: bytes) -> None:
    sent = sent.replace(b"{host}", served.host.encode()).replace(b"{token}", served.token.encode())
    idle = []
    for _ in range(100):
        idle.append(opened(served, sent))
        status, _ = served.ask("/api/choices")
        assert status == 200
    assert is_closed(idle[0]), "the one that has waited longest goes"
    for line in idle:
        line.close()


def test_a_connection_without_a_request_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvicorn", reason="uvicorn comes with the extra `web`")
    import uvicorn

    from tangram_sim.web import connections

    async def app(scope: object, receive: object, send: object) -> None:
        raise AssertionError("nobody asked")

    async def scene() -> bytes:
        settings = uvicorn.Config(app, http=connections.PromptConnection, ws="none", lifespan="off")
        settings.load()
        server = uvicorn.Server(settings)
        listening = await asyncio.get_running_loop().create_server(
            lambda: connections.PromptConnection(settings, server.server_state, {}), "127.0.0.1", 0
        )
        try:
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            writer.write(_BEGUN)
            try:
                return await asyncio.wait_for(reader.read(), 20)
            except ConnectionError:
                return b""
            finally:
                writer.close()
        finally:
            listening.close()

    monkeypatch.setattr(connections, "WHOLE_REQUEST_S", 0.05)
    monkeypatch.setattr(connections, "_LOOK_S", 0.01)
    assert asyncio.run(scene()) == b""
