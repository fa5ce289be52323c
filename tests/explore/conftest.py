"""One browser and one server for all tests of a file; without a browser they are skipped, and say why."""

import os
import shutil

import pytest

from attnlab.errors import AttnlabError
from attnlab.explore import worker

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 60_000  # milliseconds: programs may have to be compiled first


def chromium() -> str | None:
    """Chromium of the system, or the one that ATTNLAB_CHROMIUM names."""
    return os.environ.get("ATTNLAB_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(autouse=True, scope="session")
def _nothing_ahead():
    """Programs that nobody asks for are not compiled: the suite has better uses for two cores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "IDLE", 3600.0)
        yield


@pytest.fixture(scope="session")
def browser():
    """A browser, and no network but this machine's."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    path = chromium()
    if path is None:
        pytest.skip("no Chromium: install the system's package `chromium`, or set ATTNLAB_CHROMIUM")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def server():
    """A server of the presets."""
    import attnlab as al

    try:
        page = al.explore(browser=False, port=0)
    except AttnlabError as error:
        pytest.skip(str(error))
    yield page
    page.close()


@pytest.fixture
def visit(browser, server):
    """Opens pages; afterwards nothing was asked of anybody else, and nothing went wrong on them."""
    contexts, asked, wrong = [], [], []

    def open_page(fragment="", url=None, width=1280, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("websocket", lambda socket: asked.append(socket.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto((server.url if url is None else url) + fragment)
        page.wait_for_selector("[data-trained]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
    local = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "file:")
    assert [url for url in asked if not url.startswith(local)] == []
