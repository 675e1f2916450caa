"""The version of gdrtop: of the installed package, or of the checkout that runs."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

RELEASE = "0.3.0"
"""The newest release in CHANGELOG.md. A later build is 0.3.1.devDATE+gCOMMIT (build_version.py)."""

_ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))
_PACKAGE = re.compile(r"gdrtop-(.+)\.dist-info")
_ARCHIVED = "$Format:%h %cs %(describe:tags,match=v*)$"  # git archive fills it in (.gitattributes)
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_REF = re.compile(r"ref: (refs/heads/[^\s]+)")
_MOST_BYTES = 1 << 20  # packed-refs has a line for every branch and tag


def version() -> str:
    """Return "0.3.0" of a release, else "0.3.1.dev20261123+g1a2b3c4d"."""
    # importlib.metadata would find it too, in 20 ms.
    try:
        names = os.listdir(_ROOT)
    except OSError:
        names = []
    packages = [match[1] for name in names if (match := _PACKAGE.fullmatch(name))]
    if packages:
        return packages[0]
    from pathlib import Path

    return source_version(Path(_ROOT))


def source_version(root: Path, archived: str = _ARCHIVED) -> str:
    """Return the version of a directory of sources, without running git.

    A checkout is never a release: its files can differ from those of its commit.
    """
    if archived.startswith("$"):
        return development_version("0", _head(root))
    commit, date, *tag = archived.split()
    return RELEASE if tag == [f"v{RELEASE}"] else development_version(date, commit)


def development_version(date: str, commit: str) -> str:
    """Return the version of a build that is no release; `date`: as in ISO 8601, 0 if unknown."""
    major, minor, patch = map(int, RELEASE.split("."))
    number = date.replace("-", "")
    return f"{major}.{minor}.{patch + 1}.dev{number}" + (f"+g{commit[:8]}" if commit else "")


def _head(root: Path) -> str:
    """Return the commit that is checked out, "" if it is unknown."""
    try:
        git = root / ".git"
        if git.is_file():  # of git worktree add
            git = root / _text(git).removeprefix("gitdir: ")
        head = _text(git / "HEAD")
        branch = _REF.fullmatch(head)
        if branch is not None:
            shared = git / _text(git / "commondir") if (git / "commondir").is_file() else git
            head = _commit_of(shared, branch[1])
    except (OSError, ValueError):
        return ""
    return head if _COMMIT.fullmatch(head) else ""


def _commit_of(git: Path, branch: str) -> str:
    """Return the commit of a branch, "" if it has none."""
    if (git / branch).is_file():
        return _text(git / branch)
    packed = (line.split(" ") for line in _text(git / "packed-refs").splitlines())
    return next((words[0] for words in packed if words[1:] == [branch]), "")


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MOST_BYTES).decode("utf-8").strip()
