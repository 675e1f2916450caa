"""Files that pages, docstrings and comments name exist: a path that is dead sends its reader nowhere."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("probes", "widgets", "tui", "tests", "screenshots")
PAGES = [*ROOT.glob("*.md"), *(ROOT / "tui" / "manual").glob("*.md"), *(ROOT / "tests").rglob("*.md")]
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
# probes/host/local.py, tui/commands/schemas/KIND.json, probes/simulation/nodes/*.toml
PATH = re.compile(rf"(?<![\w/.~-])(?:{'|'.join(FOLDERS)})/[\w*./-]*[\w*/]")
# A document without a folder is one of this repository; README.md may be that of a project that is named.
DOCUMENT = re.compile(r"(?<![\w/.-])(?!README)[\w-]+\.md\b")
URL = re.compile(r"\w+://\S+")


@cache
def exists(name: str) -> bool:
    """Whether there is such a file; a word in capitals stands for any, and a module may be without .py."""
    if name.endswith((".cpp", ".hpp")):
        return True  # of gdrcopy, which has a folder tests too
    pattern = re.sub(r"\b[A-Z]+\b", "*", name)
    return any(ROOT.glob(pattern)) or (ROOT / f"{name}.py").is_file()


def dead_references(path: Path, line: int, text: str) -> list[str]:
    """Every file that a text names and that does not exist, as FILE:LINE: NAME."""
    dead = []
    for offset, words in enumerate(URL.sub("", text).splitlines()):
        documents = [] if path.parent.name == "manual" else DOCUMENT.findall(words)
        for name in PATH.findall(words) + documents:
            if not exists(name):
                dead.append(f"{path.relative_to(ROOT)}:{line + offset}: {name}")
    return dead


def comments_and_docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each."""
    content = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(content)):
        # A string that is a statement describes what stands before it.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)


def tree_entries(page: str) -> Iterator[tuple[int, str]]:
    """Line and path of each name in the tree of CONTRIBUTING.md, "Where things are"."""
    parent = ""
    for number, line in enumerate(page.splitlines(), 1):
        row = re.fullmatch(r"( {4}| {6})(\w\S*(?: \S+)*)(?: {2,}(.*))?", line)
        if line.startswith("## "):
            is_tree = line == "## Where things are"
        elif row and is_tree:
            names = row[2].replace(",", "").split()
            inside = "" if len(row[1]) == 4 else parent
            parent = parent if inside else names[0]
            yield from ((number, f"{inside}{name}") for name in names)
            folders = re.findall(r"(?<![\w/])\w+/(?=\W|$)", row[3] or "")
            yield from ((number, f"{inside}{names[0]}{name}") for name in folders)


def test_pages_name_files_that_exist() -> None:
    dead = [
        reference
        for path in PAGES
        if path.name != "CHANGELOG.md"
        for reference in dead_references(path, 1, path.read_text(encoding="utf-8"))
    ]
    assert not dead, "dead paths; correct them:\n" + "\n".join(dead)


def test_the_tree_in_contributing_has_folders_that_exist() -> None:
    entries = list(tree_entries((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert len(entries) > 50
    dead = [f"CONTRIBUTING.md:{line}: {name}" for line, name in entries if not (ROOT / name).exists()]
    assert not dead, "dead paths; correct them:\n" + "\n".join(dead)


def test_comments_and_docstrings_name_files_that_exist() -> None:
    dead = [
        reference
        for path in SOURCES
        if dead_references(path, 1, path.read_text(encoding="utf-8"))
        for line, text in comments_and_docstrings(path)
        for reference in dead_references(path, line, text)
    ]
    assert not dead, "dead references; correct them:\n" + "\n".join(dead)


def test_a_dead_path_is_named_with_its_line() -> None:
    text = "See probes/host/local.py,\nprobes/host/none.py and https://example.org/tests/none.py.\nnone.md §6"
    here = "tests/test_references.py"
    assert dead_references(Path(__file__), 7, text) == [
        f"{here}:8: probes/host/none.py",
        f"{here}:9: none.md",
    ]
    assert not dead_references(Path(__file__), 1, "tui/commands/schemas/KIND.json, tests/*.py, doc/x.md")
