"""The explorer in a real browser: how long from the mouse to the changed picture, and does it last?

    python benchmarks/explorer.py latency           # milliseconds of solves and of paths, while a token is dragged
    python benchmarks/explorer.py first             # seconds from the command to the first picture
    python benchmarks/explorer.py drags --events 20000

Needs the extra `explore`, playwright, and a Chromium (`ATTNLAB_CHROMIUM`, or the system's).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PRESETS = ("parting", "trap", "local", "tie", "infeasible", "concave")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--js-flags=--expose-gc",
]
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
LISTEN = """() => {
    window.drawn = [];
    document.querySelector(".attnlab-explorer").addEventListener("attnlab-drawn", (event) => drawn.push(event.detail));
}"""
PLACE = """key => {
    const { e, f } = document.querySelector(`[data-key="${key}"]`).getScreenCTM();
    return [e, f];
}"""


@contextmanager
def served() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in a process of its own, and its address."""
    command = [sys.executable, "-m", "attnlab", "explore", "--no-browser", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())["url"]
        process.terminate()


@contextmanager
def browsed() -> Iterator[Any]:
    """A page in Chromium."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("ATTNLAB_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*ARGUMENTS, *QUIET])
        yield browser.new_page(viewport={"width": 1280, "height": 900})
        browser.close()


def opened(page: Any, url: str) -> None:
    """Go there, and wait until all is drawn."""
    page.goto("about:blank")
    page.goto(url)
    page.wait_for_selector("[data-trained]", timeout=120_000)


def drag(page: Any, key: str, moves: int, pause: float, rng: random.Random) -> None:
    """Wander about with one handle."""
    x, y = page.evaluate(PLACE, key)
    page.mouse.move(x, y)
    page.mouse.down()
    for _ in range(moves):
        x, y = x + rng.gauss(0, 6), y + rng.gauss(0, 6)
        page.mouse.move(x, y)
        time.sleep(pause)
    page.mouse.up()


def latency(moves: int) -> dict[str, Any]:
    """Median and 95 % of the milliseconds from the event to the drawn answer, in every preset, at 60 moves a second."""
    rng = random.Random(0)
    rows = {}
    with served() as (_, url), browsed() as page:
        for preset in PRESETS:
            opened(page, f"{url}#preset={preset}")
            page.evaluate(LISTEN)
            drag(page, "token-0-0", moves, 1 / 60, rng)
            page.wait_for_function("() => document.querySelector('.attnlab-explorer').dataset.busy === undefined")
            drawn = page.evaluate("drawn")
            rows[preset] = {kind: quantiles([d for d in drawn if d["kind"] == kind]) for kind in ("solved", "trained")}
    return rows


def quantiles(drawn: list[dict[str, Any]]) -> dict[str, float]:
    times = sorted(one["milliseconds"] for one in drawn if one["milliseconds"] is not None)
    at = {
        name: times[min(len(times) - 1, int(share * len(times)))] for name, share in (("median", 0.5), ("95 %", 0.95))
    }
    return {**at, "count": len(times)}


def first(repeats: int) -> dict[str, Any]:
    """Seconds from the command to max-margin directions and to paths on the screen; the browser is open already."""
    times: dict[str, list[float]] = {"address": [], "directions": [], "paths": []}
    with browsed() as page:
        for _ in range(repeats):
            began = time.perf_counter()
            with served() as (_, url):
                times["address"].append(time.perf_counter() - began)
                page.goto(url)
                page.wait_for_selector("[data-solved]")
                times["directions"].append(time.perf_counter() - began)
                page.wait_for_selector("[data-trained]", timeout=120_000)
                times["paths"].append(time.perf_counter() - began)
    return times


def drags(events: int, seed: int) -> dict[str, Any]:
    """Random drags, keys, presets, undo: errors, requests elsewhere, and memory of server and page on the way."""
    rng = random.Random(seed)
    wrong: list[str] = []
    elsewhere: list[str] = []
    memory: list[dict[str, float]] = []
    with served() as (process, url), browsed() as page:
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda told: wrong.append(told.text) if told.type == "error" else None)
        local = (url, url.replace("http", "ws"), "data:", "blob:")
        page.on("request", lambda asked: None if asked.url.startswith(local) else elsewhere.append(asked.url))
        opened(page, url)
        done, turn = 0, 0
        while done < events:
            if turn % 25 == 0:
                page.select_option("#preset", rng.choice(PRESETS))
                memory.append(memory_of(process.pid, page) | {"events": done})
                print(memory[-1], file=sys.stderr, flush=True)
            keys = page.evaluate("[...document.querySelectorAll('[data-key]')].map(one => one.dataset.key)")
            moves = rng.randint(10, 60)
            drag(page, rng.choice(keys), moves, 0.0, rng)
            done += moves
            turn += 1
            if rng.random() < 0.2:
                page.keyboard.press(
                    rng.choice(["Control+z", "Control+Shift+z", "ArrowUp", "Shift+ArrowLeft", "l", "Enter"])
                )
            if rng.random() < 0.05:
                page.click("[data-action=random-start]")
        page.wait_for_function(
            "() => document.querySelector('.attnlab-explorer').dataset.busy === undefined", timeout=60_000
        )
        memory.append(memory_of(process.pid, page) | {"events": done})
    return {"events": done, "drags": turn, "errors": wrong, "requests elsewhere": elsewhere, "memory": memory}


def memory_of(pid: int, page: Any) -> dict[str, float]:
    """Megabytes of the server, and of the page's own objects."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    page.evaluate("globalThis.gc?.()")
    heap = page.evaluate("performance.memory.usedJSHeapSize")
    return {"server MB": pages * os.sysconf("SC_PAGE_SIZE") / 1e6, "page MB": heap / 1e6}


def main() -> None:
    """Print what was asked for as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("latency", "first", "drags"))
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--moves", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    measured = {
        "latency": lambda: latency(asked.moves),
        "first": lambda: first(asked.repeats),
        "drags": lambda: drags(asked.events, asked.seed),
    }
    print(json.dumps({"load": os.getloadavg(), asked.what: measured[asked.what]()}, indent=2))


if __name__ == "__main__":
    main()
