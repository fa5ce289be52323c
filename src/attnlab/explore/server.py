"""The local server: three files, and one WebSocket on which scenes are asked about."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from attnlab.checks import whole
from attnlab.errors import AttnlabError, InputError, message
from attnlab.explore.files import START, module_text, page_text, style_text
from attnlab.explore.guard import LOOPBACK, Guard
from attnlab.explore.presets import presets
from attnlab.explore.scene import PLANE_SEQUENCES, Facts, Scene, read_scene, written
from attnlab.explore.worker import Worker, refusal

PORT = 7531  # if it is free, so that the address of yesterday still works
LARGEST_MESSAGE = 2**20  # bytes
MOST_CONNECTIONS = 32
MOST_UNREAD = 32  # answers that a client has not read; it is not listened to meanwhile
SECONDS_TO_START, SECONDS_TO_STOP = 20.0, 5.0
MISSING = "The explorer needs starlette, uvicorn and websockets."


class ExplorerServer:
    """A server in a thread of its own."""

    def __init__(
        self, own: Scene | None, host: str, port: int | None, prepare: Callable[[], None] | None = None
    ) -> None:
        uvicorn = _libraries()
        self.host = host
        self.token = None if host in LOOPBACK else secrets.token_urlsafe(24)
        self.worker = Worker() if prepare is None else Worker(prepare)
        self.socket = bound(host, port)
        self.port = int(self.socket.getsockname()[1])
        application = Guard(application_of(self.worker, hello(own)), self.token)
        self.uvicorn = uvicorn.Server(
            uvicorn.Config(
                application,
                log_level="warning",
                access_log=False,
                lifespan="off",
                server_header=False,
                ws="websockets-sansio",
                ws_max_size=LARGEST_MESSAGE,
                limit_concurrency=4 * MOST_CONNECTIONS,
                timeout_graceful_shutdown=1,
            )
        )
        self.thread = threading.Thread(target=self.uvicorn.run, args=([self.socket],), daemon=True)
        self.own = own

    @property
    def url(self) -> str:
        """Where the page is; with the token, where there is one."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}/" + ("" if self.token is None else f"?token={self.token}")

    def start(self) -> ExplorerServer:
        """Serve; returns once it does."""
        self.worker.start()
        self.thread.start()
        until = time.monotonic() + SECONDS_TO_START
        while not self.uvicorn.started:
            if not self.thread.is_alive() or time.monotonic() > until:
                raise AttnlabError(f"The explorer did not start on {self.host}, port {self.port}.")
            time.sleep(0.005)
        for scene in self._scenes():
            self.worker.compile_soon(scene)
        return self

    def close(self) -> None:
        """End it."""
        self.uvicorn.should_exit = True
        self.thread.join(SECONDS_TO_STOP)
        self.socket.close()
        self.worker.close()

    def _scenes(self) -> list[Scene]:
        """Those that a reader may open next, the first of them last."""
        scenes = [read_scene(preset.scene) for preset in reversed(presets())]
        return scenes if self.own is None else [*scenes, self.own]


def hello(own: Scene | None) -> Facts:
    """What the page is told first: the presets, and the user's own tokens."""
    return {
        "kind": "hello",
        "presets": [preset.to_json() for preset in presets()],
        "own": None if own is None else written(own),
        "mostSequences": PLANE_SEQUENCES,
    }


def bound(host: str, port: int | None) -> socket.socket:
    """A socket at this port; without one at the usual port, or any that is free."""
    if port is not None:
        whole("port", port, 0, 65535)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for attempt in (PORT, 0) if port is None else (port,):
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, attempt))
        except (OSError, UnicodeError) as error:
            listening.close()
            reason = getattr(error, "strerror", None) or str(error)
            if port is not None or attempt == 0:
                problem = f"The explorer cannot listen on `{host}`, port {attempt}: {reason}."
                raise InputError(message(problem, "--port 0 takes one that is free")) from error
        else:
            return listening
    raise AssertionError("one of the two ports was bound or refused")


def application_of(worker: Worker, greeting: Facts) -> Any:
    """The Starlette application."""
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route, WebSocketRoute

    files = {
        "/": (page_text(), "text/html"),
        "/start.js": (START, "text/javascript"),
        "/explorer.js": (module_text(), "text/javascript"),
        "/explorer.css": (style_text(), "text/css"),
    }

    def route(path: str) -> Route:
        text, kind = files[path]

        async def answer(_: Any) -> Response:
            return Response(text, media_type=kind)

        return Route(path, answer)

    conversations = Conversations(worker, greeting)
    return Starlette(routes=[*map(route, files), WebSocketRoute("/live", conversations.talk)])


class Conversations:
    """What is said on the WebSockets."""

    def __init__(self, worker: Worker, greeting: Facts) -> None:
        self.worker = worker
        self.greeting = json.dumps(greeting, allow_nan=False)
        self.open = 0

    async def talk(self, socket_: Any) -> None:
        """With one client, until it goes."""
        if self.open >= MOST_CONNECTIONS:
            await socket_.close(1013, "too many pages are open")
            return
        self.open += 1
        try:
            await socket_.accept()
            await self._talk(socket_)
        finally:
            self.open -= 1

    async def _talk(self, socket_: Any) -> None:
        loop, unread = asyncio.get_running_loop(), asyncio.Queue[str]()

        def reply(facts: Facts) -> None:
            text = json.dumps(facts, allow_nan=False)
            if not loop.is_closed():
                loop.call_soon_threadsafe(unread.put_nowait, text)

        async def send_all() -> None:
            await socket_.send_text(self.greeting)
            while True:
                await socket_.send_text(await unread.get())

        client = self.worker.join(reply)
        sending = asyncio.create_task(send_all())
        try:
            while True:
                while unread.qsize() > MOST_UNREAD and not sending.done():
                    await asyncio.sleep(0.01)
                received = await socket_.receive()
                if received["type"] == "websocket.disconnect":
                    return
                self._take(client, received.get("text"), reply)
        finally:
            self.worker.leave(client)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def _take(self, client: Any, text: str | None, reply: Any) -> None:
        try:
            given = json.loads(text or "")
        except (ValueError, RecursionError):
            reply(
                refusal(InputError(message("The message is not JSON.", "an object with `kind`, `seq`, `scene`")), None)
            )
            return
        self.worker.put(client, given)


def _libraries() -> Any:
    """uvicorn, if all is there."""
    try:
        import starlette  # noqa: F401
        import uvicorn
        import websockets  # noqa: F401
    except ImportError as error:
        raise AttnlabError(f"{MISSING}\n\nhint: pip install 'attnlab[explore]'") from error
    return uvicorn
