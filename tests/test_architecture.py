"""The layout is the architecture: imports go one way, and light commands stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import attnlab

SRC = Path(attnlab.__file__).parent
ORDER = [
    "errors",
    "checks",
    "papers",
    "data",
    "models",
    "optim",
    "svm",
    "train",
    "theory",
    "reports",
    "store",
    "style",
    "study",
    "claims",
    "figures",
]
TOP = {"cli", "explore", "torch", "__main__"}  # may import all, imported by none


def room_of(path: Path) -> str:
    part = path.relative_to(SRC).parts[0]
    return part.removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """Rooms of attnlab that a file imports, also inside functions and relatively."""
    package = ["attnlab", *path.relative_to(SRC).parts[:-1]]
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    split = [name.split(".") for name in names if name.startswith("attnlab.")]
    return {parts[1] for parts in split} & {*ORDER, *TOP}


FILES = sorted(p for p in SRC.rglob("*.py") if p != SRC / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_go_one_way(path):
    room = room_of(path)
    assert room in {*ORDER, *TOP}, f"{room} is not a room of the design"
    for other in imported_rooms(path) - {room}:
        assert other not in TOP or room == "__main__", f"{room} imports {other}, which nothing may import"
        if room not in TOP:
            assert ORDER.index(other) < ORDER.index(room), f"{room} imports {other}, which comes later"


def test_the_walker_sees_every_kind_of_import(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SRC", tmp_path)
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "bad.py"
    file.write_text(
        "def f():\n    from ..train import descend\n    import attnlab.svm.dual\n    from attnlab import store\n"
    )
    assert imported_rooms(file) == {"train", "svm", "store"}


HEAVY = ("jax", "scipy", "matplotlib", "optax", "numpy")


@pytest.mark.parametrize("code", ["import attnlab", "from attnlab.cli import main; main(['--help'])"])
def test_light_start(code):
    """`import attnlab` and `attnlab --help` load none of the heavy libraries."""
    report = f"import sys; print('LOADED', [m for m in {HEAVY!r} if m in sys.modules])"
    program = f"try:\n    {code}\nexcept SystemExit as end:\n    assert not end.code\n{report}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("LOADED []"), done.stdout


def test_public_names_resolve_and_are_typed():
    """Every public name loads, and the lazy table agrees with what type checkers are told."""
    for name in attnlab.__all__:
        assert getattr(attnlab, name) is not None
    tree = ast.parse((SRC / "__init__.py").read_text())
    guarded = next(n for n in tree.body if isinstance(n, ast.If))
    imports = [node for node in guarded.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports == guarded.body
    told = {alias.asname for node in imports for alias in node.names}
    assert told == set(attnlab.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        attnlab.nothing  # noqa: B018


def test_importing_leaves_jax_settings_alone():
    program = (
        "import jax; before = dict(jax.config.values); import attnlab as al; "
        "al.descend(al.data.two_tokens(), al.ngd(0.1), steps=3); "
        "assert dict(jax.config.values) == before; assert jax.numpy.zeros(1).dtype == 'float32'"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
