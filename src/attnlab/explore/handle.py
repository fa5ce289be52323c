"""`explore`: the page, from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.checks import flag, instance
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.explore.scene import Scene, read_scene, scene_of_tokens

if TYPE_CHECKING:
    from attnlab.explore.server import ExplorerServer


class Explorer:
    """An explorer of some tokens: a page on a local server, a widget in a notebook, or a file.

    Made by `al.explore`. A notebook shows it as a widget.
    """

    def __init__(self, scene: Scene | None) -> None:
        self._scene = scene
        self._server: ExplorerServer | None = None

    @property
    def url(self) -> str | None:
        """Where the page is, with its token if there is one; None while it is not served."""
        return None if self._server is None else self._server.url

    def serve(
        self,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        browser: bool = True,
        prepare: Callable[[], None] | None = None,
    ) -> Explorer:
        """Serve the page in a thread of this process, and open it in a browser.

        `host`, `port` and `browser` are those of `al.explore`; `prepare` is called once before anything is trained.
        """
        from attnlab.explore.server import ExplorerServer

        instance("host", host, str, "the name or number of a network address")
        flag("browser", browser)
        if self._server is None:
            self._server = ExplorerServer(self._scene, host, port, prepare).start()
        if browser:
            import webbrowser

            webbrowser.open(self._server.url)
        return self

    def wait(self) -> None:
        """Until the server ends."""
        while self._server is not None and self._server.thread.is_alive():
            self._server.thread.join(0.2)

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def save(
        self, path: str | os.PathLike[str], *, moved: tuple[int, int] | None = None, title: str | None = None
    ) -> Path:
        """Write one HTML file that works from the disk, with nothing else.

        Args:
            path: of the file.
            moved: (sequence, token) of the token that a reader of the file can drag.
            title: of the page.
        """
        from attnlab.data.writing import write_text
        from attnlab.explore.export import exported

        return write_text(path, exported(self._shown(), None if moved is None else list(moved), title))

    def __enter__(self) -> Explorer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _shown(self) -> Scene:
        if self._scene is not None:
            return self._scene
        from attnlab.explore.presets import presets

        return read_scene(presets()[0].scene)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        from attnlab.explore.widget import widget_of

        return widget_of(self._scene)._repr_mimebundle_(**options)

    def __repr__(self) -> str:
        what = "presets" if self._scene is None else repr(self._scene.tokens)
        return f"Explorer({what}{'' if self.url is None else f', {self.url}'})"


def explore(
    tokens: Tokens | Mapping[str, Any] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    browser: bool | None = None,
    serve: bool = True,
) -> Explorer:
    """Drag tokens and queries in the plane, and see where attention goes.

    Everything follows the mouse: max-margin directions in both norms with their certificates, the paths of gradient
    descent for W and (K, Q), attention, loss, margin, and which start ends where. Needs the extra `explore`.

    Args:
        tokens: one data set with a head `v`, of any dimension; None for the presets. Or the fields of a scene, as the
            page sends them.
        host: address to listen on; other than this machine's own asks for a token, which `url` has.
        port: None for 7531 if it is free.
        browser: open the page; None does so unless this is a notebook, which shows a widget and needs no server.
        serve: False makes an explorer that is only saved, or served later.

    Returns:
        An `Explorer`, with `url`, `save(path)` for one self-contained HTML file, `wait()` and `close()`.

    >>> import attnlab as al
    >>> al.explore(al.data.trap("plain"), serve=False)
    Explorer(Tokens(n=2, T=2, d=2, family=trap))
    """
    made = Explorer(_scene(tokens))
    if not flag("serve", serve) or (browser is None and _in_notebook()):
        return made
    return made.serve(host=host, port=port, browser=browser is not False)


def _scene(given: Any) -> Scene | None:
    if given is None:
        return None
    if isinstance(given, Tokens):
        return scene_of_tokens(given)
    if isinstance(given, Mapping):
        return read_scene(dict(given))
    raise InputError(message("`tokens` are neither al.Tokens nor the fields of a scene.", "al.Tokens(x=, z=, y=, v=)"))


def _in_notebook() -> bool:
    """Is this the kernel of a notebook?"""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return False
    shell = get_ipython()
    return shell is not None and hasattr(shell, "kernel")
