"""Which code makes a result: the files of a package that a module reaches by its imports."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path


class Package:
    """A package on disk, read and never imported.

    A name imported from a package is followed to the module that defines it: a package that hands on names from many
    modules does not tie them together. Files are read once: what counts is the code that runs, not what an editor does
    to it meanwhile.

    Args:
        root: the folder of the package; its name is that of the package.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._read: dict[str, bytes] = {}
        self._uses: dict[str, frozenset[str]] = {}

    @cached_property
    def modules(self) -> dict[str, Path]:
        """Dotted name -> file; a package goes by its own name, without `__init__`."""
        names = {}
        for file in sorted(self.root.rglob("*.py")):
            parts = (self.root.name, *file.relative_to(self.root).with_suffix("").parts)
            names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
        return names

    def reached(self, modules: Iterable[str]) -> frozenset[str]:
        """These modules and all that they import, directly or through others."""
        seen: set[str] = set()
        waiting = [name for name in modules if name in self.modules]
        while waiting:
            module = waiting.pop()
            if module in seen:
                continue
            seen.add(module)
            waiting.extend(self._imports(module) - seen)
        return frozenset(seen)

    def digest(self, modules: Iterable[str]) -> str:
        """A hash of the names and contents of all files that these modules reach."""
        h = hashlib.blake2b(digest_size=16)
        for module in sorted(self.reached(modules)):
            content = self._content(module)
            h.update(f"{module} {len(content)}\n".encode())
            h.update(content)
        return h.hexdigest()

    def home(self, module: str, name: str) -> str:
        """The module that defines `name`, as seen from `module`; a module or package itself if it is one."""
        below = f"{module}.{name}"
        if below in self.modules:
            return below
        if not self._is_package(module):
            return module
        for node in ast.walk(self._tree(module)):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self.home(self._origin(module, node), alias.name)
        return module

    def homes(self, module: str, names: Iterable[str]) -> set[str]:
        """The modules that these names lead to when looked up in a module, or in packages within it."""
        names = set(names)
        found: set[str] = set()
        seen: set[str] = set()
        waiting = [module]
        while waiting:
            home = waiting.pop()
            if home in seen:
                continue
            seen.add(home)
            if self._is_package(home):
                waiting.extend(self.home(home, name) for name in names)
            else:
                found.add(home)
        return found

    def _is_package(self, module: str) -> bool:
        file = self.modules.get(module)
        return file is not None and file.name == "__init__.py"

    def _content(self, module: str) -> bytes:
        if module not in self._read:
            self._read[module] = self.modules[module].read_bytes()
        return self._read[module]

    def _tree(self, module: str) -> ast.Module:
        return ast.parse(self._content(module))

    def _imports(self, module: str) -> frozenset[str]:
        if module not in self._uses:
            self._uses[module] = frozenset(self._imported(module))
        return self._uses[module]

    def _imported(self, module: str) -> Iterator[str]:
        tree = self._tree(module)
        for node in _that_run(tree):
            if isinstance(node, ast.ImportFrom):
                origin = self._origin(module, node)
                for alias in node.names:
                    yield from self._led_to(tree, self.home(origin, alias.name), alias.asname or alias.name)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    bound = alias.asname or alias.name.split(".")[0]
                    yield from self._led_to(tree, alias.name if alias.asname else bound, bound)

    def _led_to(self, tree: ast.Module, module: str, bound: str) -> Iterator[str]:
        """What importing a module under a name leads to; of a package, what is looked up in it."""
        if module not in self.modules:
            return
        if not self._is_package(module):
            yield module
            return
        looked_up = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        bases = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == bound)
        if any(id(node) not in bases for node in names):  # handed on as a whole
            yield from (name for name in self.modules if name == module or name.startswith(f"{module}."))
        else:
            yield from self.homes(module, looked_up)

    def _origin(self, module: str, node: ast.ImportFrom) -> str:
        """The dotted name that an import is from."""
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        above = parts[: len(parts) - node.level + self._is_package(module)]
        return ".".join([*above, *(node.module or "").split(".")]).rstrip(".")


def _that_run(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from (inner for child in node.orelse for inner in (child, *_that_run(child)))
            continue
        yield node
        yield from _that_run(node)


@cache
def attnlab_package() -> Package:
    """attnlab itself."""
    return Package(Path(__file__).parent.parent)
