"""The page in a real browser: what the mouse, the keyboard and the buttons do."""

import json
import re

import numpy as np
import pytest

import attnlab as al


def settled(page, action):
    """Do something, and wait until the last message that it caused is answered in full."""
    before = int(page.locator(".attnlab-explorer").first.get_attribute("data-trained"))
    action()
    page.wait_for_function(
        """before => {
            const root = document.querySelector(".attnlab-explorer");
            return Number(root.dataset.trained) > before && root.dataset.busy === undefined;
        }""",
        arg=before,
    )


def drag(page, key, dx, dy, steps=8):
    """From the middle of a handle: its group is kept when it is drawn anew, its parts are not."""
    x, y = page.evaluate(
        """key => {
            const handle = document.querySelector(`[data-key="${key}"]`);
            const { e, f } = handle.getScreenCTM();
            return [e, f];
        }""",
        key,
    )
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + dx, y + dy, steps=steps)
    page.mouse.up()


def number(page, name):
    text = page.locator(f'[data-number="{name}"]').get_attribute("data-value")
    return float(text) if re.fullmatch(r"[-+.\de]+", text) else text


def address(page):
    return page.evaluate("location.hash")


def ran(text):
    """The names that a copied program leaves behind."""
    names = {}
    exec(compile(text, "copied.py", "exec"), names)
    return names


def python_of(page):
    page.click("[data-action=python]")
    return page.locator("[data-python]").input_value()


def agrees(page, names):
    """Do the numbers on the screen and those of the program agree?"""
    for name, norm in (("W", "frobenius"), ("KQ", "nuclear")):
        run, svm = names["runs"][name], names["directions"][name, norm]
        assert number(page, f"{norm}-margin") == pytest.approx(svm.margin, rel=1e-9)
        assert number(page, f"{norm}-status") == svm.status.name.lower()
        assert number(page, f"{name}-norm") == pytest.approx(run.metrics["norm"][-1], rel=1e-9)
        apart = float(al.misalignment(run.W, svm.W))
        assert number(page, f"{name}-apart") == pytest.approx(apart, rel=1e-6, abs=0.0)


def test_the_first_picture_needs_no_click(visit):
    page = visit()
    assert page.locator("[data-path]").count() == 4
    assert page.locator("[data-direction]").count() == 4
    tokens = al.data.two_clusters(seed=6)
    svm = al.solve_margin(tokens, al.optimal_tokens(tokens))
    assert number(page, "frobenius-margin") == pytest.approx(svm.margin, rel=1e-3)
    assert number(page, "W-apart") < 0.01 < number(page, "frobenius-margin")


def test_dragging_moves_everything_and_undo_takes_it_back(visit):
    page = visit()
    path = page.locator('[data-path="W-0"]').get_attribute("d")
    margin = number(page, "frobenius-margin")
    settled(page, lambda: drag(page, "token-0-2", 60, -90))
    assert page.locator('[data-path="W-0"]').get_attribute("d") != path
    assert number(page, "frobenius-margin") != margin
    moved = address(page)
    assert moved.startswith("#preset=parting&x0=")
    settled(page, lambda: page.keyboard.press("Control+z"))
    assert number(page, "frobenius-margin") == margin
    assert address(page) == "#preset=parting"
    settled(page, lambda: page.keyboard.press("Control+Shift+z"))
    assert address(page) == moved


def test_dragged_queries_heads_and_starts_are_copied_as_a_program_with_the_same_numbers(visit):
    page = visit()
    settled(page, lambda: drag(page, "query-1", -40, 50))
    settled(page, lambda: drag(page, "head", 30, 20))
    settled(page, lambda: drag(page, "start-0", -50, 30))
    assert "start=" in address(page)
    agrees(page, ran(python_of(page)))


@pytest.mark.parametrize("preset", ["trap", "infeasible", "concave"])
def test_presets_are_copied_as_programs_with_the_same_numbers(visit, preset):
    page = visit(f"#preset={preset}&view.of=descent")
    names = ran(python_of(page))
    agrees(page, names)
    kept = number(page, "W-selected")
    if preset == "trap":
        assert kept == "A1 B0"
    if preset == "concave":
        assert kept == "A0+1"
    if preset == "infeasible":
        page.select_option("#of", "best")
        assert number(page, "frobenius-status") == "infeasible"
        assert not names["directions"]["best", "frobenius"].feasible
        assert page.locator("[data-farkas]").count() == 3
        assert "= 0" in page.locator("[data-remark=farkas]").inner_text()


def test_a_tie_is_said(visit):
    page = visit("#preset=tie")
    assert "A0 and A1" in page.locator("[data-remark=tie]").inner_text()


def test_keyboard(visit):
    page = visit("#preset=local")
    page.locator('[data-key="token-0-3"]').focus()
    settled(page, lambda: page.keyboard.press("ArrowRight"))
    assert "0.32,-0.8" in address(page)
    settled(page, lambda: page.keyboard.press("Shift+ArrowUp"))
    assert "0.32,-0.7" in address(page)
    settled(page, lambda: page.keyboard.press("Enter"))
    assert "chosen=3" in address(page)
    assert page.locator("#of").input_value() == "chosen"
    settled(page, lambda: page.keyboard.press("Delete"))
    assert page.locator('[data-key^="token-0-"]').count() == 3
    settled(page, lambda: (page.locator('[data-key="token-0-0"]').focus(), page.keyboard.press("l")))
    assert "y0=-1" in address(page)


def test_the_slider_of_time_and_play(visit):
    page = visit("#preset=trap")
    page.locator("#time").focus()
    page.keyboard.press("Home")
    assert page.locator("output[for=time]").inner_text() == "step 0"
    page.click("[data-action=play]")
    page.wait_for_function("() => document.querySelector('output[for=time]').textContent === 'step 2000'")


def test_an_address_brings_the_state_back(visit):
    page = visit("#preset=trap&step=0.25&steps=500")
    settled(page, lambda: drag(page, "token-1-1", 25, 10))
    page.uncheck("#show-KQ")
    again = visit(address(page))
    for name in ("frobenius-margin", "W-norm", "W-apart"):
        assert number(again, name) == number(page, name)
    assert address(again) == address(page)
    assert not again.is_checked("#show-KQ")


def test_sequences_and_tokens_are_added_and_removed(visit):
    page = visit("#preset=tie")
    settled(page, lambda: page.click("[data-action=add-sequence]"))
    settled(page, lambda: page.click("[data-action=add-token-1]"))
    agrees(page, names := ran(python_of(page)))
    assert names["tokens"].mask.sum() == 7
    settled(page, lambda: page.click("[data-action=remove-sequence-0]"))
    assert page.locator('[data-key^="token-"]').count() == 4


def test_basins_are_those_of_limits(visit):
    page = visit("#preset=trap&view.basins=true&view.shape=circle")
    page.wait_for_selector("[data-basin]")
    names = page.locator("[data-basin]").evaluate_all("cells => cells.map(cell => cell.dataset.limit)")
    assert len(names) == 64
    x = [[[1.5, 0.0], [-1.5, 0.0]], [[-0.45, 0.2179], [0.45, -0.2179]]]
    tokens = al.Tokens(x=x, z=[[1.0, 0.0], [1.0, 0.0]], y=[1, 1], v=[0.3, 1.0])
    angles = 2 * np.pi * np.arange(64) / 64
    starts = np.zeros((64, 2, 2))
    starts[:, :, 0] = 3.0 * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    found = al.limits(tokens, 64, init={"W": starts})
    assert names == [found.limits[i].name for i in found.limit_of]
    assert len(set(names)) == 2


def test_two_tabs_do_not_disturb_each_other(visit):
    one, other = visit("#preset=trap"), visit("#preset=local")
    before = number(other, "frobenius-margin")
    settled(one, lambda: drag(one, "token-0-0", -30, 20))
    assert number(other, "frobenius-margin") == before
    settled(other, lambda: drag(other, "token-0-1", 10, 10))
    assert "x0=" in address(one)
    assert "x0=" in address(other)


def test_pictures_and_tokens_are_taken_away(visit, tmp_path):
    page = visit("#preset=local")
    for what in ("svg", "png", "npz"):
        with page.expect_download() as taken:
            page.click(f"[data-action={what}]")
        taken.value.save_as(tmp_path / f"taken.{what}")
    picture = (tmp_path / "taken.svg").read_text()
    assert "var(" not in picture
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")
    assert (tmp_path / "taken.png").read_bytes().startswith(b"\x89PNG")
    tokens = al.Tokens.load(tmp_path / "taken.npz")
    assert tokens.x[0, 1].tolist() == [-1.1, 0.35]


def test_an_exported_file_works_without_a_server(visit, tmp_path):
    explorer = al.explore(al.data.trap("plain"), serve=False)
    file = explorer.save(tmp_path / "page.html", moved=(1, 0), title="A </script> trap")
    page = visit(url=file.as_uri())
    assert page.title() == "A </script> trap"
    path, now = page.locator('[data-path="W-0"]').get_attribute("d"), page.locator('[data-key="token-1-0"]')
    place = now.get_attribute("transform")
    drag(page, "token-1-0", 90, -90)
    assert now.get_attribute("transform") != place
    assert page.locator('[data-path="W-0"]').get_attribute("d") != path
    still = page.locator('[data-key="token-0-0"]')
    place = still.get_attribute("transform")
    drag(page, "token-0-0", 40, 40)
    assert still.get_attribute("transform") == place
    page.locator("#time").focus()
    page.keyboard.press("Home")
    assert page.locator("output[for=time]").inner_text() == "step 0"
    assert "al.descend" in python_of(page)


def test_a_server_that_goes_is_missed_and_found_again(visit):
    first = al.explore(browser=False, port=0)
    port = int(first.url.rsplit(":", 1)[1].rstrip("/"))
    page = visit(url=first.url)
    margin = number(page, "frobenius-margin")
    first.close()
    page.wait_for_selector(".status[data-state=lost]")
    assert "gone" in page.locator(".status").inner_text()
    drag(page, "token-0-2", 60, -90)
    assert number(page, "frobenius-margin") == margin
    second = al.explore(browser=False, port=port)
    try:
        page.wait_for_function(
            "margin => Number(document.querySelector('[data-number=frobenius-margin]').dataset.value) !== margin",
            arg=margin,
        )
        assert page.locator(".status").get_attribute("data-state") == "open"
    finally:
        second.close()


def test_own_tokens_of_any_dimension(visit):
    tokens = al.data.sphere(n=3, T=4, d=7, seed=1)
    own = al.explore(tokens, browser=False, port=0)
    try:
        page = visit(url=own.url)
        assert page.locator("#attention").input_value() == "heat"
        agrees(page, ran(python_of(page)))
        page.select_option("#axis-0", "3")
        settled(page, lambda: drag(page, "token-2-1", 30, 30))
        assert number(page, "frobenius-status") == "optimal"
    finally:
        own.close()


def test_the_widget_renders_the_same_module(visit, server):
    """In a notebook a model carries the messages; here Python stands in for its kernel."""
    pytest.importorskip("anywidget")
    from attnlab.explore.widget import widget_of

    widget = widget_of(None)
    answers = []
    widget.send = answers.append
    widget.client.reply = answers.append
    page = visit()
    page.expose_function("toKernel", lambda content: widget._received(widget, json.loads(content), []))
    page.expose_function("fromKernel", lambda: json.dumps([answers.pop(0) for _ in range(len(answers))]))
    page.evaluate(
        """async () => {
            const { default: widget } = await import("/explorer.js");
            const el = document.createElement("div");
            el.id = "cell";
            document.body.append(el);
            let heard = () => {};
            const model = { on: (_, call) => { heard = call; }, send: (content) => toKernel(JSON.stringify(content)) };
            widget.render({ model, el });
            setInterval(async () => JSON.parse(await fromKernel()).forEach((content) => heard(content)), 30);
        }"""
    )
    page.wait_for_selector("#cell [data-trained]")
    assert page.locator("#cell [data-path]").count() == 4
    widget.close()
