"""The version says which sources run: of a release, a build, an archive and a checkout."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import tui.files.version
from build_version import build_version
from tui.files.version import RELEASE, development_version, source_version, version

ROOT = Path(__file__).parents[1]
MAJOR, MINOR, PATCH = map(int, RELEASE.split("."))
NEXT = f"{MAJOR}.{MINOR}.{PATCH + 1}"


def git(folder: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    for person in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{person}_NAME": "A", f"GIT_{person}_EMAIL": "a@example.org"}
        environment[f"GIT_{person}_DATE"] = "2027-01-02T03:04:05Z"
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("no git here")
    root = tmp_path / "checkout"
    (root / "tui" / "files").mkdir(parents=True)
    for name in (".gitattributes", "tui/files/version.py"):
        shutil.copy(ROOT / name, root / name)
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "Begin")
    return root


def test_the_release_is_the_newest_of_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)", changelog, re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1].split()[0] == RELEASE, "CHANGELOG.md and RELEASE in tui/files/version.py differ"


def test_a_build_has_the_date_and_the_commit(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert build_version(checkout) == f"{NEXT}.dev20270102+g{commit[:8]}"


def test_a_build_of_changed_files_says_so(checkout: Path) -> None:
    (checkout / ".gitattributes").write_text("")
    assert build_version(checkout).endswith(".changed")


def test_a_build_of_a_tag_is_the_release(checkout: Path) -> None:
    git(checkout, "tag", f"v{RELEASE}")
    assert build_version(checkout) == RELEASE
    git(checkout, "commit", "--quiet", "--allow-empty", "--message", "Go on")
    assert build_version(checkout).startswith(f"{NEXT}.dev")


def test_a_build_of_a_source_distribution_has_its_version(tmp_path: Path) -> None:
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: gdrtop\nVersion: 0.1.7\n")
    assert build_version(tmp_path) == "0.1.7"


def test_a_build_outside_a_repository_has_no_commit(tmp_path: Path) -> None:
    assert build_version(tmp_path) == f"{NEXT}.dev0"


def test_a_build_without_git_has_the_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    monkeypatch.setenv("PATH", "/nowhere")
    assert build_version(checkout) == f"{NEXT}.dev0+g{commit[:8]}"


def test_an_archive_has_the_date_and_the_commit(checkout: Path) -> None:
    archived = git(checkout, "archive", "HEAD", "tui/files/version.py")
    line = re.search(r'^_ARCHIVED = "(.*?)"', archived, re.MULTILINE)
    assert line is not None
    assert source_version(checkout, line[1]).startswith(f"{NEXT}.dev20270102+g")
    assert source_version(checkout, f"1a2b3c4d 2027-01-02 v{RELEASE}") == RELEASE
    assert source_version(checkout, "1a2b3c4d 2027-01-02 v0.0.1-7-g1a2b3c4d") == (
        f"{NEXT}.dev20270102+g1a2b3c4d"
    )


def test_a_checkout_has_the_commit_of_the_moment(checkout: Path) -> None:
    for message in ("One", "Two"):
        git(checkout, "commit", "--quiet", "--allow-empty", "--message", message)
        commit = git(checkout, "rev-parse", "HEAD")
        assert source_version(checkout) == f"{NEXT}.dev0+g{commit[:8]}"
    git(checkout, "pack-refs", "--all")
    assert source_version(checkout).endswith(f"+g{commit[:8]}")
    git(checkout, "checkout", "--quiet", "--detach", "HEAD~1")
    commit = git(checkout, "rev-parse", "HEAD")
    assert source_version(checkout).endswith(f"+g{commit[:8]}")


def test_a_worktree_has_its_own_commit(checkout: Path) -> None:
    tree = checkout.parent / "tree"
    git(checkout, "worktree", "add", "--quiet", "-b", "other", str(tree))
    git(tree, "commit", "--quiet", "--allow-empty", "--message", "Other")
    assert source_version(tree).endswith(f"+g{git(tree, 'rev-parse', 'HEAD')[:8]}")
    assert source_version(tree) != source_version(checkout)


@pytest.mark.parametrize("head", ["", "ref: refs/heads/none", "ref: ../../etc/passwd", "\0", "0123", "\xff"])
def test_a_damaged_repository_has_no_commit(tmp_path: Path, head: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(head, encoding="latin-1")
    assert source_version(tmp_path) == f"{NEXT}.dev0"
    assert build_version(tmp_path) == f"{NEXT}.dev0"


def test_an_installed_package_has_the_version_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tui.files.version, "_ROOT", tmp_path)
    assert version() == f"{NEXT}.dev0"
    built = development_version("2027-01-02", "1a2b3c4d5e6f")
    (tmp_path / "gdrtop_other-9.9.dist-info").mkdir()
    (tmp_path / f"gdrtop-{built}.dist-info").mkdir()
    assert version() == built == f"{NEXT}.dev20270102+g1a2b3c4d"
    monkeypatch.setattr(tui.files.version, "_ROOT", tmp_path / "none")
    assert version() == f"{NEXT}.dev0"


def test_the_version_is_one_that_pip_knows() -> None:
    pattern = r"\d+\.\d+\.\d+(\.dev\d+(\+[0-9a-z]+(\.[0-9a-z]+)*)?)?"
    assert re.fullmatch(pattern, version())
    assert re.fullmatch(pattern, build_version())
