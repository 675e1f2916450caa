"""What releases promised is still there, or the changelog says that it was removed or changed."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tui.commands.published_schemas import shape
from tests.tui.commands.stability import FOLDER, promises, read, written
from tui.cli import _COMMANDS
from tui.commands.schema import KINDS, schema_text
from tui.files.version import RELEASE

CHANGELOG = FOLDER.parents[3] / "CHANGELOG.md"
RELEASES = sorted(path.stem for path in FOLDER.glob("*.txt"))
DOCUMENTS = [
    (release, *path.stem.rsplit("-", 1))
    for release in RELEASES
    for path in sorted((FOLDER / release).glob("*.txt"))
]


def changes(since: str) -> Iterator[str]:
    """Every entry under Removed and Changed of the versions after a release."""
    newer = re.split(rf"(?m)^## {re.escape(since)} ", CHANGELOG.read_text(encoding="utf-8"))[0]
    for section in re.findall(r"(?ms)^### (?:Removed|Changed)\n(.*?)(?=^##|\Z)", newer):
        yield from (" ".join(entry.split()) for entry in re.split(r"(?m)^- ", section) if entry.strip())


def is_named(since: str, *words: str) -> bool:
    """Whether one entry has all of these words."""
    forms = [re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])") for word in words]
    return any(all(form.search(entry) for form in forms) for entry in changes(since))


@pytest.mark.parametrize("release", RELEASES)
def test_what_went_is_in_the_changelog(release: str) -> None:
    now = promises()
    unnamed = []
    for kind, names in read(FOLDER / f"{release}.txt").items():
        about = re.findall(r"(?<= of )\S+|--\S+", kind)
        unnamed += [
            f"{kind}: {name}" for name in names - now.get(kind, set()) if not is_named(release, *about, name)
        ]
    assert not unnamed, (
        f"gone since {release}; name it under Removed in CHANGELOG.md, or keep it: {sorted(unnamed)}"
    )


@pytest.mark.parametrize("release", RELEASES)
def test_a_command_gets_no_new_exit_status_silently(release: str) -> None:
    now = promises()
    for kind, statuses in read(FOLDER / f"{release}.txt").items():
        command = kind.removeprefix("exit statuses of ")
        if kind != command and now.get(kind):
            new = now[kind] - statuses
            assert not new or is_named(release, command, "exit status"), (
                f"{kind}: {new} is new since {release}"
            )


@pytest.mark.parametrize(("release", "document", "number"), DOCUMENTS)
def test_a_released_document_keeps_its_lines_or_has_a_new_number(
    release: str, document: str, number: str
) -> None:
    assert document in KINDS or is_named(release, document)
    schema = json.loads(schema_text(document))
    current = schema["$id"].rpartition(":")[2]
    if current == number:
        lost = set((FOLDER / release / f"{document}-{number}.txt").read_text(encoding="utf-8").splitlines())
        assert lost <= set(shape(schema)), f"lost since {release}: {sorted(lost - set(shape(schema)))}"
    else:
        assert is_named(release, f"{document}/{current}"), f"{document}/{current} is not under Changed"


def test_the_table_has_everything_that_is_promised() -> None:
    now = promises()
    assert {name for name in now["commands"] if " " not in name} == {"gdrtop", *_COMMANDS}
    assert len(now["checks"]) > 300
    assert now["exit statuses of check"] == {"0", "1", "2", "3"}
    assert {"--all", "--only", "--json"} <= now["options of check"]
    assert {"fleet bench", "fleet check"} <= now["commands"]


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    now = promises()
    path = tmp_path / "1.0.0.txt"
    path.write_text(written(now), encoding="utf-8")
    assert read(path) == {kind: names for kind, names in now.items() if names}


def test_releases_before_this_one_have_their_table() -> None:
    headings = re.findall(r"(?m)^## (\d+\.\d+\.\d+) ", CHANGELOG.read_text(encoding="utf-8"))
    assert headings[0] == RELEASE
    assert set(headings[1:]) <= set(RELEASES), "a release without its table (.github/RELEASING.md)"
