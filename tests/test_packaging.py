"""What is installed: the three packages with their data files, and the command."""

import importlib
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from build_version import build_version

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PACKAGES = ("tui", "probes", "widgets")
DATA = {".bash", ".css", ".fish", ".ids", ".j2", ".json", ".tcss", ".toml", ".txt", ".yaml"}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    told: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return told


def files(*suffixes: str) -> set[str]:
    found = (path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.suffix in suffixes)
    return {str(path.relative_to(ROOT)) for path in found}


def test_the_wheel_takes_all_packages(project: dict[str, Any]) -> None:
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == set(PACKAGES)


def test_every_directory_with_code_is_a_package() -> None:
    directories = {str(Path(name).parent) for name in files(".py")}
    assert {name for name in directories if not (ROOT / name / "__init__.py").is_file()} == set()


def test_the_command_is_there(project: dict[str, Any]) -> None:
    module, _, name = project["project"]["scripts"]["gdrtop"].partition(":")
    forced = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    (source,) = (source for source, target in forced.items() if target == f"{module}.py")
    installed = (ROOT / source).resolve().relative_to(ROOT).with_suffix("")
    assert callable(getattr(importlib.import_module(".".join(installed.parts)), name))


def test_git_does_not_ignore_a_data_file() -> None:
    # hatchling leaves out of the wheel what git ignores.
    data = sorted(files(*DATA))
    assert "tui/app.tcss" in data
    assert "tui/screens/panes.tcss" in data
    assert "probes/recording/redaction/words.txt" in data
    assert any(name.startswith("probes/simulation/nodes/") for name in data)
    try:
        asked = subprocess.run(["git", "check-ignore", *data], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no git here")
    if asked.returncode > 1:
        pytest.skip("not a checkout of git")
    assert asked.stdout == ""


@pytest.mark.slow
def test_the_wheel_holds_code_data_the_man_page_and_completions(tmp_path: Path) -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel")
    (built,) = wheel.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    assert Path(built).name.startswith(f"gdrtop-{build_version()}-")
    names = set(zipfile.ZipFile(built).namelist())
    assert {name for name in files(".py", *DATA) if not name.startswith("tui/deploy/")} <= names
    folder = f"gdrtop-{build_version()}"
    shared = {name.partition(".data/data/share/")[2] for name in names if name.startswith(f"{folder}.data/")}
    assert shared == {
        "man/man1/gdrtop.1",
        "bash-completion/completions/gdrtop",
        "zsh/site-functions/_gdrtop",
        "fish/vendor_completions.d/gdrtop.fish",
    }
    packages = {name.split("/")[0] for name in names if not name.startswith(f"{folder}.d")}
    assert packages == {*PACKAGES, "gdrtop.py"}


def test_the_oldest_python_is_the_same_everywhere(project: dict[str, Any]) -> None:
    oldest = project["project"]["requires-python"].removeprefix(">=")
    assert project["tool"]["mypy"]["python_version"] == oldest
    assert project["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    asked = re.search(r"version_info < \((\d+), (\d+)\)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert asked is not None
    assert ".".join(asked.groups()) == oldest


def test_the_readmes_pictures_are_there() -> None:
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert pictures
    assert all((ROOT / name).is_file() for name in pictures)
