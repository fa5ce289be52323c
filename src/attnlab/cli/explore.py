"""`attnlab explore`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from attnlab.cli.show import compile_cache, one_blas_thread, print_json, print_text, say


@dataclass(frozen=True)
class Explore:
    """Open a page on which tokens and queries are dragged, and where attention goes follows the mouse.

    FILE is an npz as for `attnlab solve`, with a head v, of any dimension; without it the page begins with its presets.
    Ends with Ctrl-C.
    """

    file: tyro.conf.Positional[Path | None] = None
    """Your own tokens."""
    port: int | None = None
    """Where to listen; 0 for any that is free (default: 7531, or any if that is taken)."""
    host: str = "127.0.0.1"
    """Address to listen on. Any but this machine's own can be reached by others, and asks for the token that is printed
    with the address."""
    browser: bool = True
    """Open the page in the browser."""
    mask: str | None = None
    """What each query sees: as for `attnlab solve`."""
    out: Path | None = None
    """Write one HTML file that works without a server, and end."""
    json: bool = False
    """Print the address as JSON."""

    def run(self) -> int:
        one_blas_thread()
        import attnlab as al
        from attnlab.cli.solve import Asked, read_tokens
        from attnlab.data.writing import check_writable

        asked: Asked = self  # pyright: ignore[reportAssignmentType]
        tokens = None if self.file is None else read_tokens(asked)
        page = al.explore(tokens, serve=False)
        if self.out is not None:
            check_writable(self.out)
            compile_cache()
            say(str(page.save(self.out)))
            return 0
        page.serve(host=self.host, port=self.port, browser=False, prepare=compile_cache)
        assert page.url is not None
        if self.json:
            print_json({"url": page.url})
        else:
            print_text(page.url)
            say("Ctrl-C ends the explorer")
        if "token=" in page.url:
            say("others can reach this address; without the token in it they are refused")
        try:
            if self.browser:
                page.serve()
            page.wait()
        finally:
            page.close()
        return 0
