"""The recipes of CONTRIBUTING.md, followed in a copy of the repository: their files are enough, and needed.

Each has a sample change in tests/guide_recipes.py. With all of it, the named tests pass. Without one of its
files, a test fails and its message says what is missing. With the samples of all recipes, the whole fast tier
passes: what a recipe forgets to name fails there.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.guide_recipes import PICTURES, RECIPES, ROOT, Recipe
from tests.test_references import PATH

LEFT_BEHIND = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__")
RUN = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short")
SNAPSHOTS = "tests/tui/test_snapshots.py"
# No sample changes the tests of recipes, how a gdrtop ends that cannot start, or what real machines show.
UNCHANGED = ("tests/test_guide_recipes.py", "tests/tui/test_launch.py", "tests/machines/test_machines.py")
FORGOTTEN = [(heading, path) for heading, recipe in RECIPES.items() for path in recipe.forgotten]


def paragraphs() -> dict[str, str]:
    """Heading → text of each recipe."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.partition("## How to add …")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\*\*(.+?)\*\*(.*?)(?=^\*\*|\Z)", section, re.MULTILINE | re.DOTALL))


def test_every_recipe_has_a_sample() -> None:
    assert sorted(paragraphs()) == sorted(RECIPES)


@pytest.mark.parametrize("heading", RECIPES)
def test_a_recipe_names_exactly_the_files_that_its_sample_touches(heading: str) -> None:
    recipe, text = RECIPES[heading], paragraphs()[heading]
    folders = {match.rstrip("/") for match in PATH.findall(text) if match.endswith("/")}
    named = {match for match in PATH.findall(text) if not match.endswith("/")}
    touched = {*recipe.paths}
    unnamed = [path for path in touched if path not in text and str(Path(path).parent) not in folders]
    assert not unnamed, f"CONTRIBUTING.md, {heading}, does not name {unnamed}"
    tests = {
        test.partition("::")[0]
        for test in (*recipe.tests, *(failing for failing, _ in recipe.forgotten.values()))
    }
    tests |= {SNAPSHOTS} if recipe.pictures else set()
    untouched = named - touched - tests - {*recipe.others}
    untouched |= {
        f"{folder}/"
        for folder in folders
        if f"{folder}/" not in (*touched, *recipe.others)
        and not any(str(Path(path).parent) == folder for path in touched)
    }
    assert not untouched, f"CONTRIBUTING.md, {heading}, names {untouched}, which the sample does not touch"
    unused = {*recipe.others} - named - {f"{folder}/" for folder in folders}
    assert not unused, f"tests/guide_recipes.py, {heading}: CONTRIBUTING.md does not name {unused}"


@pytest.mark.parametrize("heading", RECIPES)
def test_a_sample_fits_the_files_of_the_repository(heading: str, tmp_path: Path) -> None:
    for change in RECIPES[heading].changes:
        file = tmp_path / change.path
        file.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / change.path).exists() and not file.exists():
            shutil.copy(ROOT / change.path, file)
        change.apply(tmp_path)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository."""
    root = tmp_path_factory.mktemp("recipes") / "repository"
    shutil.copytree(ROOT, root, symlinks=True, ignore=LEFT_BEHIND)
    return root


@contextmanager
def changed(root: Path, recipe: Recipe, left_out: str = "") -> Iterator[None]:
    """The copy with a recipe's changes, but for one file."""
    files = [root / path for path in recipe.paths if path != PICTURES]
    files += (root / PICTURES).rglob("*.svg") if recipe.pictures else []
    before = {file: file.read_bytes() for file in files if file.exists()}
    try:
        for change in recipe.changes:
            if change.path != left_out:
                change.apply(root)
        for command in recipe.commands:
            if left_out not in recipe.written:
                status, output = run_python(root, *command)
                assert status == 0 or left_out, output
        yield
    finally:
        for file in (*files, *(root / PICTURES).rglob("*.svg")) if recipe.pictures else files:
            if file not in before:
                file.unlink(missing_ok=True)
            elif file.read_bytes() != before[file]:
                file.write_bytes(before[file])


def run_python(root: Path, *arguments: str) -> tuple[int, str]:
    """The exit status and the output of Python in the copy."""
    # An outer pytest and its plugins leave variables for their workers.
    own = ("PYTEST_", "TEXTUAL_", "PYTHONPATH", "COV_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    environment |= {"PYTHONPATH": str(root), "COLUMNS": "400"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("heading", RECIPES)
def test_the_files_of_a_recipe_are_enough(repository: Path, heading: str) -> None:
    recipe = RECIPES[heading]
    with changed(repository, recipe):
        status, output = run_python(repository, *RUN, *recipe.tests)
        assert status == 0, output
        if recipe.pictures:
            test = f"{SNAPSHOTS}::{recipe.pictures}"
            status, output = run_python(repository, *RUN, "-m", "", test)
            assert status == 1, output
            assert f"pytest -m '' --snapshot-update '{test}'" in output
            status, output = run_python(repository, *RUN, "-m", "", "--snapshot-update", test)
            assert status == 0, output


@pytest.mark.slow
@pytest.mark.parametrize(("heading", "path"), FORGOTTEN)
def test_a_file_that_is_left_out_is_named(repository: Path, heading: str, path: str) -> None:
    test, message = RECIPES[heading].forgotten[path]
    with changed(repository, RECIPES[heading], left_out=path):
        status, output = run_python(repository, *RUN, test)
    assert status in (1, 2), output  # 2: a module cannot be imported
    assert message in output


@pytest.mark.slow
def test_with_all_recipes_together_the_fast_tier_passes(repository: Path) -> None:
    workers = ("-n", str(len(os.sched_getaffinity(0))), "--dist", "worksteal")
    with ExitStack() as stack:
        for recipe in RECIPES.values():
            stack.enter_context(changed(repository, recipe))
        run_python(repository, *RUN, *workers, "--snapshot-update", SNAPSHOTS)
        status, output = run_python(repository, *RUN, *workers, *(f"--ignore={path}" for path in UNCHANGED))
    assert status == 0, output
