"""Files that pages, docstrings and comments name exist: a path that is dead sends its reader nowhere."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("probes", "widgets", "tui", "tests", "screenshots")
PAGES = [*ROOT.glob("*.md"), *(ROOT / "tui" / "manual").glob("*.md"), *(ROOT / "tests").rglob("*.md")]
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
# probes/host/machine/local.py, tui/commands/NAME.py, probes/simulation/nodes/*.toml
PATH = re.compile(rf"(?<![\w/.~-])(?:{'|'.join(FOLDERS)})/[\w*./-]*[\w*/]")
# A document without a folder is one of this repository; README.md may be that of a project that is named.
DOCUMENT = re.compile(r"(?<![\w/.-])(?!README)[\w-]+\.md\b")
URL = re.compile(r"\w+://\S+")
# The pages that name classes, functions and tables: `LiveSampler`, `judge()`, `PORT_COUNTERS`.
GUIDES = ("CONTRIBUTING.md", "ARCHITECTURE.md")
NAME = re.compile(r"`(?!(?:None|True|False)\b)(_?[A-Z]\w*|\w+(?=\(\)))(?:\(\))?`")


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


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def is_defined(name: str, files: Iterable[Path]) -> bool:
    """Whether a class, a function, a table or a heading of this name stands in one of the files."""
    definition = re.compile(rf"^\s*(?:(?:async )?def |class |\[)?{name}\b(?:[:(\]]| = |$)", re.MULTILINE)
    return any(definition.search(text_of(file)) for file in files)


def undefined_names(text: str) -> list[str]:
    """Every name in backquotes that no file defines which the same paragraph or row names, as LINE: NAME."""
    undefined = []
    for paragraph in re.finditer(r"(?:^\|.*\n)|(?:^(?![|\n]).*\n)+", text, re.MULTILINE):
        line = text.count("\n", 0, paragraph.start()) + 1
        patterns = [path.rstrip("/") for path in PATH.findall(paragraph[0])]
        named = [file for pattern in patterns for file in ROOT.glob(pattern)]
        named += [file for folder in named if folder.is_dir() for file in folder.rglob("*.py")]
        undefined += [
            f"{line + paragraph[0].count(chr(10), 0, name.start())}: {name[0]}"
            for name in NAME.finditer(paragraph[0])
            if not is_defined(name[1], named or SOURCES)
        ]
    return undefined


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
    """Line and path of each name in the tree of ARCHITECTURE.md."""
    parent = ""
    for number, line in enumerate(page.splitlines(), 1):
        row = re.fullmatch(r"( {4}| {6})(\w\S*(?: \S+)*)(?: {2,}(.*))?", line)
        if line.startswith("## "):
            is_tree = line == "## The tree"
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


def test_the_tree_has_folders_that_exist() -> None:
    entries = list(tree_entries((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")))
    assert len(entries) > 50
    dead = [f"ARCHITECTURE.md:{line}: {name}" for line, name in entries if not (ROOT / name).exists()]
    assert not dead, "dead paths; correct them:\n" + "\n".join(dead)


@pytest.mark.parametrize("page", GUIDES)
def test_guides_name_classes_and_functions_that_exist(page: str) -> None:
    undefined = [f"{page}:{name}" for name in undefined_names(text_of(ROOT / page))]
    assert not undefined, "no file of the paragraph defines these names; correct them:\n" + "\n".join(
        undefined
    )


def test_a_name_that_is_not_defined_is_named_with_its_line() -> None:
    text = "`Host` is in probes/host/protocol.py,\n`Guest` is not. `f` is a key.\n\n`judge()`\n"
    assert undefined_names(text) == ["2: `Guest`"]
    assert undefined_names("| `Host` | probes/facts/node.py |\n| `Node` | probes/facts/node.py |\n") == [
        "1: `Host`"
    ]


@pytest.mark.slow
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
    text = (
        "See probes/host/values.py,\nprobes/host/none.py and https://example.org/tests/none.py.\nnone.md §6"
    )
    here = "tests/test_references.py"
    assert dead_references(Path(__file__), 7, text) == [
        f"{here}:8: probes/host/none.py",
        f"{here}:9: none.md",
    ]
    assert not dead_references(Path(__file__), 1, "tui/commands/NAME.py, tests/*.py, doc/x.md")
