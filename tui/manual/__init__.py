"""The manual: one Markdown file a subject, shown by `gdrtop help`, by the key `?` and in the man page."""

from __future__ import annotations

from importlib import resources

from probes.base.data_files import read_toml

_TABLES = read_toml(__name__, "pages.toml")
GROUPS: dict[str, dict[str, str]] = _TABLES["questions"]
"""Each page in the order of reading, with the question that it answers."""
SUBJECTS = tuple(subject for questions in GROUPS.values() for subject in questions)
COMMAND_PAGES: dict[str, str] = _TABLES["commands"]
"""The page about each command that has no page of its own name."""


def page(subject: str) -> str:
    """Return the Markdown text of a subject, one of SUBJECTS."""
    return (resources.files("tui.manual") / f"{subject}.md").read_text(encoding="utf-8")


def title(subject: str) -> str:
    """Return the title of a subject: its first line."""
    return page(subject).partition("\n")[0].removeprefix("# ")
