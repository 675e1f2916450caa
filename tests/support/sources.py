"""What the source files of gdrtop import, call and name."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = ("probes", "widgets", "tui")
NO_NAMES = {"of", "one", "it", "them"}
MODULES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> str:
    return name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Source(NamedTuple):
    """What a file imports, calls and names; to keep all trees would slow the search for garbage down."""

    imports: tuple[tuple[str, tuple[str, ...]], ...]  # module, names taken from it
    calls: frozenset[tuple[str, str]]  # object and function: ("os", "unlink"), ("", "open"), ("?", "read")
    no_names: tuple[tuple[int, str], ...]  # line, name
    docstring: str


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node of a tree, in a third of the time of ast.walk."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for value in vars(node).values():
            if isinstance(value, list):
                waiting.extend(item for item in value if isinstance(item, ast.AST))
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                waiting.append(value)


@cache
def source_of(path: Path) -> Source:
    tree = tree_of(path)
    imported: list[tuple[str, tuple[str, ...]]] = []
    calls = set()
    no_names = []
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            imported.extend((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.append((node.module, tuple(alias.name for alias in node.names)))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            calls.add(("", node.func.id))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            calls.add((owner.id if isinstance(owner, ast.Name) else "?", node.func.attr))
        elif isinstance(node, (ast.arg, ast.Name)):
            name = node.arg if isinstance(node, ast.arg) else node.id
            if name in NO_NAMES:
                no_names.append((node.lineno, name))
    return Source(tuple(imported), frozenset(calls), tuple(no_names), ast.get_docstring(tree) or "")


def imports(path: Path) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """(module, names taken from it) of every import, wherever it stands."""
    return source_of(path).imports


def called(path: Path) -> frozenset[tuple[str, str]]:
    """(object, function) of every call by name."""
    return source_of(path).calls


def modules_after(code: str) -> set[str]:
    """What Python has imported after running a piece of code in a process of its own."""
    code += "\nimport sys\nprint('MODULES', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("MODULES ")[2].split())


def constants(path: Path) -> Iterator[tuple[int, str]]:
    """Every string of a file; what f-strings insert is {}."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts.update(id(value) for value in node.values)
            pieces = (str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
            yield node.lineno, "".join(pieces)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, node.value
