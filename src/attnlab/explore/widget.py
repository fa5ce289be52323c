"""The explorer in a notebook: the same module, with the kernel in place of the server."""

from __future__ import annotations

from typing import Any

from attnlab.errors import AttnlabError
from attnlab.explore.files import module_text, style_text
from attnlab.explore.scene import Scene
from attnlab.explore.server import hello
from attnlab.explore.worker import Worker


def widget_of(scene: Scene | None) -> Any:
    """An anywidget whose messages a thread of this process answers."""
    try:
        import anywidget
    except ImportError as error:
        raise AttnlabError("A widget needs anywidget.\n\nhint: pip install 'attnlab[explore]'") from error

    class ExplorerWidget(anywidget.AnyWidget):
        """The page in the output of a cell."""

        _esm = module_text()
        _css = style_text()

        def __init__(self) -> None:
            super().__init__()
            self.worker = Worker().start()
            self.client = self.worker.join(self.send)
            self.on_msg(self._received)

        def _received(self, _: Any, content: Any, __: Any) -> None:
            if isinstance(content, dict) and content.get("kind") == "hello":
                self.send(hello(scene))
            else:
                self.worker.put(self.client, content)

        def close(self) -> None:
            """Answer nothing more."""
            self.worker.close()
            super().close()

    return ExplorerWidget()
