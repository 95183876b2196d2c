"""The routes of the page's server: static files, choices of the forms, runs of verbs as event streams."""

import json
from contextlib import aclosing
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

import anyio
from anyio import to_thread
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tangram_sim.errors import TangramError
from tangram_sim.web.auth import BodyTooLongError, Receive, Scope, Send
from tangram_sim.web.documents import ChoicesDocument, VerbAnswer, VerbRequest
from tangram_sim.web.history import History, question_key
from tangram_sim.web.runs import Runs, TooManyRunsError
from tangram_sim.web.work import HowFar

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]


def web_app(runs: Runs, offered: ChoicesDocument, history: History) -> Starlette:
    """The ASGI application; access is checked by `auth`, not here."""
    listed = offered.model_dump_json()

    async def choices(_: Request) -> Response:
        return Response(listed, media_type="application/json")

    async def run(request: Request) -> Response | _RunStream:
        try:
            asked = VerbRequest.model_validate_json(await request.body())
            runs.require_possible(asked)
        except BodyTooLongError:
            return PlainTextResponse("the files are too long for the page", 413)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return PlainTextResponse(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", 400)
        except TooManyRunsError as error:
            return PlainTextResponse(str(error), 429)
        except TangramError as error:
            return PlainTextResponse(str(error), 400)
        return _RunStream(runs, asked, history)

    async def kept(request: Request) -> Response:
        """The kept answers: a list of all, or one; all questions as a file; or how many were deleted."""
        key = request.path_params.get("key", "")
        if request.method == "DELETE":
            return PlainTextResponse(str(await to_thread.run_sync(history.forget, key)))
        if key == "questions.yaml":
            return PlainTextResponse(await to_thread.run_sync(history.question_file))
        try:
            found = await to_thread.run_sync(lambda: history.get(key) if key else history.listed())
        except TangramError as error:
            return PlainTextResponse(str(error), 410)
        if found is None:
            return PlainTextResponse("no such answer is kept here", 404)
        return Response(found.model_dump_json(), media_type="application/json")

    static = [Route(path, _file(name, folder)) for path, name, folder in _pages()]
    return Starlette(
        routes=[
            *static,
            Route("/api/choices", choices),
            Route("/api/run", run, methods=["POST"]),
            Route("/api/history", kept, methods=["GET", "DELETE"]),
            Route("/api/history/{key}", kept, methods=["GET", "DELETE"]),
        ]
    )


def _pages() -> list[tuple[str, str, str]]:
    """(URL path, file, package) of every static file; the chart code is that of `reports`."""
    own = [entry.name for entry in files("tangram_sim.web").joinpath("assets").iterdir()]
    found = [(f"/{name}", name, "tangram_sim.web") for name in sorted(own)]
    found += [(f"/{name}", name, "tangram_sim.reports") for name in ("charts.js", "charts.css")]
    return [("/", "index.html", "tangram_sim.web"), *found]


def _file(name: str, package: str) -> Any:
    """An endpoint that answers with one file of the package."""
    body = files(package).joinpath("assets", name).read_bytes()
    kind = _TYPES["." + name.rsplit(".", 1)[-1]]

    async def answer(_: Request) -> Response:
        return Response(body, media_type=kind)

    return answer


@dataclass(frozen=True, slots=True)
class _RunStream:
    """A run as a stream of server-sent events: any number of `progress`, then one `answer`.

    If the reader disconnects, the run is ended.
    """

    runs: Runs
    asked: VerbRequest
    history: History

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the run has ended or the reader has disconnected."""
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM})
        async with anyio.create_task_group() as group:

            async def until_gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(until_gone)
            try:
                async with aclosing(self.runs.answers(self.asked)) as answers:
                    async for item in answers:
                        if isinstance(item, VerbAnswer) and self.asked.keep and item.code == 0:
                            item = item.with_fields(key=question_key(self.asked))
                            await to_thread.run_sync(self.history.put, self.asked, item)
                        await send(_event(item))
            except TangramError as error:
                await send(_event(VerbAnswer(command="", code=2, error=str(error))))
            await send({"type": "http.response.body", "body": b""})
            group.cancel_scope.cancel()


def _event(one: HowFar | VerbAnswer) -> dict[str, Any]:
    if isinstance(one, HowFar):
        name, text = "progress", json.dumps(asdict(one))
    else:
        name, text = "answer", one.model_dump_json()
    return {
        "type": "http.response.body",
        "body": f"event: {name}\ndata: {text}\n\n".encode(),
        "more_body": True,
    }
