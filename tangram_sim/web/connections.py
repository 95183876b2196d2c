"""HTTP connections that are closed if no request arrives, so that idle ones do not block others."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

WHOLE_REQUEST_S = 30  # within which the headers of a request have to be there, and more of its body to come
MOST_WAITING = 32  # connections that send no request; with one more, that which has waited longest goes
_LOOK_S = 1.0


class PromptConnection(H11Protocol):
    """An HTTP/1.1 connection that is closed if no complete request arrives in time."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._since_s = self.loop.time()

    @property
    def waits(self) -> bool:
        """Whether the connection has no complete request to answer."""
        return self.cycle is None or self.cycle.response_complete or self._body_is_open

    @property
    def _body_is_open(self) -> bool:
        return bool(self.cycle and self.cycle.more_body and not self.cycle.response_started)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait; where too many do, close the one that has waited longest."""
        super().connection_made(transport)
        self._since_s = self.loop.time()
        self.loop.call_later(_LOOK_S, self._look)
        waiting = [
            connection
            for connection in self.connections
            if isinstance(connection, PromptConnection) and connection.waits
        ]
        if len(waiting) > MOST_WAITING:
            min(waiting, key=lambda item: item._since_s).leave()

    def data_received(self, data: bytes) -> None:
        """Receive data; while a request body keeps arriving, the waiting time starts again."""
        if self._body_is_open:
            self._since_s = self.loop.time()
        super().data_received(data)

    def on_response_complete(self) -> None:
        """Start waiting for the next request."""
        self._since_s = self.loop.time()
        super().on_response_complete()

    def leave(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)
        self.transport.abort()

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        if self.waits and self.loop.time() - self._since_s > WHOLE_REQUEST_S:
            self.leave()
        else:
            self.loop.call_later(_LOOK_S, self._look)
