"""One thread that answers messages: the newest of each client first, older ones not at all."""

from __future__ import annotations

import atexit
import base64
import tempfile
import threading
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from attnlab.checks import instance, one_of, shown, whole
from attnlab.errors import AttnlabError, InputError, message
from attnlab.explore.answers import Answers, Stale, descended
from attnlab.explore.basins import basins
from attnlab.explore.scene import Facts, Scene, read_scene
from attnlab.explore.script import as_python

Reply = Callable[[Facts], None]

LIVE = ("scene", "basins")  # of each kind a client has one message waiting: a newer one takes its place
ASIDE = ("python", "npz", "html")
MOST_WAITING = 8  # of the others
LARGEST_SEQ = 2**53
# While newer messages wait, the path of an older one is left out, unless the picture has stood still for so long.
PATIENCE = 0.08
IDLE = 1.5  # seconds without a message, after which programs are compiled ahead
KEPT_SHAPES = 256
SECONDS_TO_END = 30.0


def _import_training() -> None:
    import attnlab.train  # noqa: F401


@dataclass(eq=False)
class Client:
    """Whoever sends messages: a tab, or a widget."""

    reply: Reply
    live: dict[str, Facts] = field(default_factory=dict)
    others: deque[Facts] = field(default_factory=deque)
    trained_at: float = 0.0
    gone: bool = False

    def waiting(self) -> bool:
        """Is there anything to answer?"""
        return bool(self.live or self.others)


class Worker:
    """Answers the messages of all clients, in turn, in one thread; and compiles ahead in another.

    `prepare` is called once, in a thread of its own, before anything is trained.
    """

    def __init__(self, prepare: Callable[[], None] = _import_training) -> None:
        self.prepared = threading.Event()
        self.prepare = prepare
        self.clients: OrderedDict[int, Client] = OrderedDict()
        self.changed = threading.Condition()
        self.closed = False
        self.last_message = time.monotonic()
        self.ahead: deque[Scene] = deque(maxlen=32)
        self.compiled: OrderedDict[tuple[Any, ...], None] = OrderedDict()
        self.threads = [threading.Thread(target=work, daemon=True) for work in self._works()]

    def _works(self) -> tuple[Callable[[], None], ...]:
        return (self._prepare, self._answer_all, self._compile_ahead)

    def _prepare(self) -> None:
        """What takes long and is not needed for max-margin directions, which come first."""
        try:
            self.prepare()
        finally:
            self.prepared.set()

    def start(self) -> Worker:
        """Begin to answer."""
        for thread in self.threads:
            thread.start()
        atexit.register(self.close)
        return self

    def close(self) -> None:
        """Answer nothing more; returns when the threads are done, for a compiler that is cut off takes all down."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        for thread in self.threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(SECONDS_TO_END)
        atexit.unregister(self.close)

    def join(self, reply: Reply) -> Client:
        """A new client."""
        client = Client(reply)
        with self.changed:
            self.clients[id(client)] = client
        return client

    def leave(self, client: Client) -> None:
        """A client that is gone: what it asked is dropped."""
        with self.changed:
            client.gone = True
            client.live.clear()
            client.others.clear()
            self.clients.pop(id(client), None)

    def put(self, client: Client, given: Any) -> None:
        """A message of a client, to be answered; a wrong one is answered at once."""
        try:
            asked = check_message(given)
        except AttnlabError as error:
            client.reply(refusal(error, given))
            return
        with self.changed:
            self.last_message = time.monotonic()
            if asked["kind"] in LIVE:
                client.live[asked["kind"]] = asked
            elif len(client.others) < MOST_WAITING:
                client.others.append(asked)
            else:
                error = InputError(message(f"More than {MOST_WAITING} messages are waiting.", "wait for answers"))
                client.reply(refusal(error, asked))
            self.changed.notify_all()

    def compile_soon(self, scene: Scene) -> None:
        """When nothing else is to be done, make the programs that this scene needs."""
        with self.changed:
            self.ahead.appendleft(scene)
            self.changed.notify_all()

    def _answer_all(self) -> None:
        while True:
            with self.changed:
                while not self.closed and not any(client.waiting() for client in self.clients.values()):
                    self.changed.wait()
                if self.closed:
                    return
                key = next(key for key, client in self.clients.items() if client.waiting())
                client = self.clients[key]
                self.clients.move_to_end(key)  # the others come first next time
                asked = self._next_of(client)
            self._answer(client, asked)

    @staticmethod
    def _next_of(client: Client) -> Facts:
        if "scene" in client.live:
            return client.live.pop("scene")
        if client.others:
            return client.others.popleft()
        return client.live.pop("basins")

    def _answer(self, client: Client, asked: Facts) -> None:
        try:
            self._answers[asked["kind"]](self, client, asked)
        except Stale:
            pass
        except AttnlabError as error:
            client.reply(refusal(error, asked))
        except Exception as error:  # a fault of ours: the page is told, and the server stays alive
            traceback.print_exc()
            client.reply(refusal(error, asked))

    def _scene(self, client: Client, asked: Facts) -> None:
        scene = read_scene(asked["scene"])

        def newer() -> bool:
            return client.gone or self.closed or "scene" in client.live

        def newer_and_fresh() -> bool:
            return newer() and (client.gone or time.monotonic() - client.trained_at < PATIENCE)

        answers = Answers(scene, newer_and_fresh)
        client.reply({"kind": "solved", "seq": asked["seq"], **answers.solved()})
        self.prepared.wait()
        if newer_and_fresh():
            return
        trained = answers.trained()
        client.trained_at = time.monotonic()
        client.reply({"kind": "trained", "seq": asked["seq"], **trained})
        with self.changed:
            self._remember(program_key(scene))
            self.ahead.extendleft(neighbours(scene))

    def _basins(self, client: Client, asked: Facts) -> None:
        scene = read_scene(asked["scene"])
        self.prepared.wait()
        found = basins(scene, asked["basins"], lambda: client.gone or self.closed or bool(client.live))
        client.reply({"kind": "basins", "seq": asked["seq"], **found})

    def _python(self, client: Client, asked: Facts) -> None:
        client.reply({"kind": "python", "seq": asked["seq"], "text": as_python(read_scene(asked["scene"]))})

    def _npz(self, client: Client, asked: Facts) -> None:
        tokens = read_scene(asked["scene"]).tokens
        with tempfile.TemporaryDirectory() as folder:
            content = tokens.save(Path(folder) / "tokens.npz").read_bytes()
        client.reply({"kind": "npz", "seq": asked["seq"], "base64": base64.b64encode(content).decode()})

    def _html(self, client: Client, asked: Facts) -> None:
        from attnlab.explore.export import exported

        text = exported(read_scene(asked["scene"]), asked.get("moved"), asked.get("title"), lambda: client.gone)
        client.reply({"kind": "html", "seq": asked["seq"], "text": text})

    _answers: ClassVar = {"scene": _scene, "basins": _basins, "python": _python, "npz": _npz, "html": _html}

    def _remember(self, key: tuple[Any, ...]) -> bool:
        """Note that programs of this kind are there; were they before?"""
        known = key in self.compiled
        self.compiled[key] = None
        self.compiled.move_to_end(key)
        while len(self.compiled) > KEPT_SHAPES:
            self.compiled.popitem(last=False)
        return known

    def _compile_ahead(self) -> None:
        while True:
            with self.changed:
                while not self.closed and not self.ahead:
                    self.changed.wait()
                if self.closed:
                    return
                quiet_for = time.monotonic() - self.last_message
                if quiet_for < IDLE:
                    self.changed.wait(IDLE - quiet_for)
                    continue
                scene = self.ahead.popleft()
                if self._remember(program_key(scene)):
                    continue
            self._compile(scene)

    def _compile(self, scene: Scene) -> None:
        self.prepared.wait()
        try:
            for name in ("W", "KQ"):
                if not self.closed:
                    descended(scene, name, steps=1)
        except AttnlabError:  # nothing that could be trained: who asks for it will be told
            pass


def check_message(given: Any) -> Facts:
    """Kind, number and scene of a message; the scene itself is checked when it is answered."""
    asked = instance("message", given, dict, "an object with `kind`, `seq` and `scene`")
    one_of("kind", asked.get("kind"), (*LIVE, *ASIDE))
    whole("seq", asked.get("seq"), 0, LARGEST_SEQ)
    extra = {"basins": {"basins"}, "html": {"moved", "title"}}.get(asked["kind"], set())
    unknown = set(asked) - {"kind", "seq", "scene"} - extra
    if unknown:
        raise InputError(message(f"`message` has a field {shown(sorted(map(str, unknown))[0])} that is not known."))
    return asked


def refusal(error: Exception, asked: Any) -> Facts:
    """What the client is told of an error."""
    seq = asked.get("seq") if isinstance(asked, dict) else None
    is_number = isinstance(seq, int) and not isinstance(seq, bool) and 0 <= seq <= LARGEST_SEQ
    known = isinstance(error, AttnlabError)
    text = str(error) if known else f"attnlab failed with {type(error).__name__}; the terminal of the server has more."
    kind = asked.get("kind") if isinstance(asked, dict) else None
    return {
        "kind": "error",
        "seq": seq if is_number else None,
        "of": kind if isinstance(kind, str) and kind in (*LIVE, *ASIDE) else None,
        "error": type(error).__name__ if known else "Fault",
        "message": text,
    }


def program_key(scene: Scene) -> tuple[Any, ...]:
    """Scenes with equal keys are trained by the same compiled programs."""
    tokens = scene.tokens
    return (*tokens.x.shape, tokens.K, tokens.mask is None, scene.head, scene.rule, scene.loss)


def neighbours(scene: Scene) -> list[Scene]:
    """Scenes that are one click away: with one token more, and with one sequence more or less."""
    from dataclasses import replace

    import numpy as np

    from attnlab.data.tokens import Tokens
    from attnlab.explore.scene import PLANE_SEQUENCES

    tokens = scene.tokens
    if tokens.d != 2 or tokens.K is not None or tokens.n > PLANE_SEQUENCES:
        return []

    def other(x: np.ndarray, z: np.ndarray, y: np.ndarray, mask: np.ndarray | None) -> Scene:
        changed = Tokens(x=x, z=z, y=y, v=tokens.v, mask=mask)
        return replace(scene, tokens=changed, lengths=(x.shape[1],) * len(x), chosen=None)

    longer = np.concatenate([tokens.x, tokens.x[:, -1:] + 0.1], axis=1)
    visible = np.ones(longer.shape[:2], dtype=bool)
    visible[1:, -1] = False
    found = [other(longer, tokens.z, tokens.y, visible if tokens.n > 1 else None)]
    if tokens.mask is None and tokens.n < PLANE_SEQUENCES:
        x, z, y = (np.concatenate([array, array[-1:]]) for array in (tokens.x, tokens.z, tokens.y))
        found.append(other(x, z, y, None))
    return found
