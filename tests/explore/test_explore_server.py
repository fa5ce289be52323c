"""Who may speak to the server, what it answers, and that it stays alive whatever it is sent."""

import json
import socket
import string
import subprocess
import sys
import time
import urllib.request
from urllib.error import HTTPError
from urllib.parse import urlsplit

import numpy as np
import pytest

import attnlab as al
from attnlab.errors import InputError
from attnlab.explore import worker as worker_module
from attnlab.explore.files import FOLDER, MODULES, module_text
from attnlab.explore.guard import host_name
from attnlab.explore.presets import presets
from attnlab.explore.server import LARGEST_MESSAGE
from attnlab.explore.worker import Worker

websockets = pytest.importorskip("websockets.sync.client")

SCENE = presets()[3].to_json()["scene"]


def get(url, **headers):
    """Status, headers and text."""
    request = urllib.request.Request(url, headers={name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except HTTPError as refused:
        with refused:
            return refused.code, dict(refused.headers), refused.read().decode()


def live(url, origin=None, **options):
    """A WebSocket, from a page of this server unless told otherwise."""
    parts = urlsplit(url)
    own = f"http://{parts.netloc}"
    address = f"ws://{parts.netloc}/live" + (f"?{parts.query}" if parts.query else "")
    return websockets.connect(address, origin=own if origin is None else origin, max_size=2**24, **options)


def answer(connection, kind=None):
    while True:
        told = json.loads(connection.recv(timeout=60))
        if kind is None or told["kind"] == kind:
            return told


def test_the_page_is_served_with_a_strict_policy(server):
    status, headers, text = get(server.url)
    assert status == 200
    assert "start.js" in text
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    for name in ("explorer.js", "start.js", "explorer.css"):
        assert get(server.url + name)[0] == 200


@pytest.mark.parametrize(
    "path", ["etc/passwd", "../pyproject.toml", "%2e%2e/%2e%2e/etc/passwd", "page/plane.js", "live"]
)
def test_nothing_else_is_served(server, path):
    assert get(server.url + path)[0] in (403, 404)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7531", "127.0.0.1.evil.example", "", "0.0.0.0"])
def test_a_foreign_name_that_leads_here_is_refused(server, host):
    assert get(server.url, Host=host)[0] in (400, 403)
    with pytest.raises(websockets.InvalidStatus if hasattr(websockets, "InvalidStatus") else Exception):
        live(server.url, additional_headers={"Host": host})


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1", "http://localhost:1"])
def test_a_foreign_page_cannot_speak(server, origin):
    with pytest.raises(Exception, match="403"):
        live(server.url, origin=origin)
    assert get(server.url, Origin=origin)[0] == 403


def test_without_an_origin_nobody_speaks(server):
    parts = urlsplit(server.url)
    with pytest.raises(Exception, match="403"):
        websockets.connect(f"ws://{parts.netloc}/live")


def test_names_of_hosts():
    assert [host_name(text) for text in ("LocalHost:1", "[::1]", "a.b:2", "")] == ["localhost", "::1", "a.b", ""]


def test_elsewhere_a_token_is_asked_for():
    page = al.explore(browser=False, host="0.0.0.0", port=0)
    try:
        parts = urlsplit(page.url)
        assert len(parts.query) > len("token=") + 30
        here = f"http://127.0.0.1:{parts.port}/"
        assert get(here)[0] == 403
        assert get(f"{here}?token=wrong")[0] == 403
        status, headers, _ = get(f"{here}?{parts.query}")
        assert status == 200
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert get(f"{here}explorer.js", Cookie=cookie.split(";")[0])[0] == 200
        with pytest.raises(Exception, match="403"):
            live(here)
        with live(f"{here}?{parts.query}") as connection:
            assert answer(connection)["kind"] == "hello"
        with pytest.raises(Exception, match="403"):
            live(f"{here}?{parts.query}", origin="http://evil.example")
    finally:
        page.close()


def malformed(count):
    """Messages that are none: broken JSON, wrong kinds, scenes with a field that is wrong."""
    rng = np.random.default_rng(0)
    letters = list(string.printable)
    odd = [
        None,
        True,
        -1,
        1e308,
        "text",
        [],
        {},
        [[]],
        [[[1]]],
        {"a": 1},
        [float("nan")],
        "\x00",
        10**30,
        [[1, 2], [3]],
    ]
    fields = [*SCENE, "pull", "file", "__class__"]
    for i in range(count):
        kind = i % 5
        if kind == 0:
            yield "".join(rng.choice(letters, rng.integers(0, 60)))
        elif kind == 1:
            yield json.dumps({"kind": odd[rng.integers(len(odd))], "seq": i, "scene": SCENE})
        elif kind == 2:
            yield json.dumps({"kind": "scene", "seq": odd[1 + rng.integers(len(odd) - 1)], "scene": SCENE})
        elif kind == 3:
            wrong = {fields[rng.integers(len(fields))]: odd[rng.integers(1, len(odd))]}
            yield json.dumps({"kind": "python", "seq": i, "scene": SCENE | wrong})
        else:
            yield "[" * int(rng.integers(1, 5000))


def test_a_thousand_malformed_messages_are_answered_and_the_server_lives(server):
    typed, told = 0, []
    with live(server.url) as connection:
        assert answer(connection)["kind"] == "hello"
        for text in malformed(1000):
            connection.send(text)
            reply = answer(connection)
            while reply["kind"] in ("solved", "trained"):  # a few are scenes after all
                reply = answer(connection) if reply["kind"] == "solved" else {"kind": "trained", "done": True}
                if reply.get("done"):
                    break
            told.append(reply)
            typed += reply["kind"] == "error" and reply["error"] in ("InputError", "InfeasibleSelection")
        connection.send(json.dumps({"kind": "scene", "seq": 5, "scene": SCENE}))
        assert answer(connection, "solved")["seq"] == 5
        assert answer(connection, "trained")["seq"] == 5
    faults = [reply for reply in told if reply.get("error") == "Fault"]
    assert faults == []
    assert typed > 900


def test_a_message_that_is_too_long_ends_its_own_connection_only(server):
    with live(server.url) as connection:
        answer(connection)
        connection.send("x" * (LARGEST_MESSAGE + 1))
        with pytest.raises(Exception, match="1009"):
            connection.recv(timeout=20)
    with live(server.url) as connection:
        assert answer(connection)["kind"] == "hello"


def test_bytes_are_no_message(server):
    with live(server.url) as connection:
        answer(connection)
        connection.send(b"\x00\x01")
        assert answer(connection)["kind"] == "error"


def test_a_taken_port_is_said(server):
    port = urlsplit(server.url).port
    with pytest.raises(InputError, match="cannot listen"):
        al.explore(browser=False, port=port)
    with pytest.raises(InputError, match="`port`"):
        al.explore(browser=False, port=70_000)


def test_programs_are_compiled_ahead_when_nothing_else_is_to_be_done(monkeypatch):
    from attnlab.explore.scene import read_scene

    monkeypatch.setattr(worker_module, "IDLE", 0.0)
    made = []
    monkeypatch.setattr(worker_module, "descended", lambda scene, name, **_: made.append((scene.tokens.T, name)))
    worker = Worker().start()
    try:
        worker.compile_soon(read_scene(SCENE))
        worker.compile_soon(read_scene(SCENE))
        until = time.monotonic() + 30
        while len(made) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    finally:
        worker.close()
    assert made == [(3, "W"), (3, "KQ")]


def test_the_module_imports_nothing_and_its_parts_have_names_of_their_own():
    text = module_text()
    assert "import {" not in text
    assert "http:" not in text.replace("http://www.w3.org/2000/svg", "")
    assert sorted(f"{name}.js" for name in MODULES) == sorted(path.name for path in FOLDER.glob("*.js"))
    names = [
        line.split()[1].split("(")[0]
        for line in text.splitlines()
        if line.startswith(("function ", "const ", "class "))
    ]
    assert len(names) == len(set(names))


def test_own_tokens_that_cannot_be_shown_are_refused():
    tokens = al.data.sphere(n=2, T=2, d=2, seed=0, trials=3)
    with pytest.raises(InputError, match="trials"):
        al.explore(tokens, serve=False)
    with pytest.raises(InputError, match="up to"):
        al.explore(al.data.sphere(n=2, T=200, d=2, seed=0), serve=False)
    with pytest.raises(InputError, match="no `v`"):
        al.explore(al.Tokens(x=np.eye(2)[None], z=[[1.0, 0.0]], y=[1]), serve=False)
    with pytest.raises(InputError, match="`tokens`"):
        al.explore(3, serve=False)


def test_the_room_is_callable_once_it_is_imported():
    code = "import attnlab.explore, attnlab; print(attnlab.explore(serve=False))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Explorer(presets)"


def test_the_command_prints_its_address_and_ends_with_ctrl_c(tmp_path):
    command = [sys.executable, "-m", "attnlab", "explore", "--no-browser", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        url = json.loads(running.stdout.readline())["url"]
        assert get(url)[0] == 200
        running.send_signal(2)
        running.communicate(timeout=60)
    assert running.returncode == 130
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", urlsplit(url).port)) != 0
