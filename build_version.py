"""What hatchling calls for a build: the version, and the files that only packages have (pyproject.toml)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

from tui.files.version import RELEASE, development_version, source_version

ROOT = Path(__file__).parent


def build_version(root: Path = ROOT) -> str:
    """Return the release if its tag is checked out, else the next version with the commit's date and id.

    The date orders builds and needs no history, so a shallow clone without tags has it too.
    """
    package = root / "PKG-INFO"  # of a source distribution
    if package.is_file():
        lines = package.read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith("Version: ")).removeprefix("Version: ")
    if not (root / ".git").exists():  # or git would find the repository around it
        return source_version(root)
    try:
        commit, date = _git(root, "log", "-1", "--abbrev=8", "--format=%h %cs").split()
        tags = _git(root, "tag", "--points-at", "HEAD").split()
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return source_version(root)
    if f"v{RELEASE}" in tags and not changed:
        return RELEASE
    return development_version(date, commit) + (".changed" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    # A hook of git sets GIT_DIR and more.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


class GeneratedFiles(BuildHookInterface):
    """Put the man page and the completions into a wheel; an editable install has neither."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write them to a folder of this build."""
        if version == "editable":
            return
        if self.root not in sys.path:
            sys.path.insert(0, self.root)
        from tests.generated_files import write

        self._folder = tempfile.TemporaryDirectory()
        written = write(Path(self._folder.name))
        build_data["shared_data"].update({str(path): f"share/{place}" for place, path in written.items()})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder."""
        if version != "editable":
            self._folder.cleanup()
