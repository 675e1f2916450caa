"""The recipes of CONTRIBUTING.md, followed in a copy of the repository: their files are enough, and needed.

Each recipe has a sample change. With all of it, the tests that the recipe names pass. Without one of its
files, a test fails and its message names the file or folder that is missing.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COPIED = ("probes", "widgets", "tui", "tests", "pyproject.toml", "build_version.py")
RUN = ("-q", "-p", "no:cacheprovider", "--tb=short")

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Change:
    """A text that goes before the last `before` of a file; without it to the end, or into a new file."""

    path: str
    text: str
    before: str = ""

    def apply(self, root: Path) -> None:
        file = root / self.path
        content = file.read_text(encoding="utf-8") if file.exists() else ""
        start, mark, end = content.rpartition(self.before) if self.before else (content, "", "")
        assert mark == self.before, f"{self.path} has no {self.before!r}: correct the recipe in {__file__}"
        file.write_text(f"{start}{self.text}{mark}{end}", encoding="utf-8")


@dataclass(frozen=True)
class Recipe:
    """A recipe of CONTRIBUTING.md, "How to add …", with a sample."""

    changes: tuple[Change, ...]
    tests: tuple[str, ...]
    missing: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Path that is left out → the test that fails, and what its message names."""

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(change.path for change in self.changes))


CHECK = Recipe(
    (
        Change(
            "probes/checks/nic/port_state.py",
            '''

@AREA.check(
    "sample-port-without-lid",
    Severity.NOTE,
    "An InfiniBand port has no LID",
    "opensm(8)",
    ok="Every InfiniBand port has a LID",
    impact="No other node can reach the port.",
)
def sample_port_without_lid(examination: Examination) -> Outcome:
    """Find active InfiniBand ports whose LID is 0."""
    ports = [port for port in need_ports(examination) if port.facts.link_layer == "InfiniBand"]
    for port in ports:
        if need(port.facts.lid, "the port's LID") == 0 and port.facts.state == "ACTIVE":
            return found("The subnet manager gave it none.", Evidence(f"{port.path}/lid", "0x0"))
    return passed(*first_n(_state(port) for port in ports), Evidence("/sys/class/infiniband", "read"))
''',
        ),
        Change(
            "probes/simulation/faults/nic.py",
            """    fault("sample-port-without-lid", "A port (mlx5_2) has no LID", _port("mlx5_2", lid="0x0")),
""",
            before=")\n",
        ),
        Change(
            "tests/probes/checks/nic/test_port_state.py",
            """

def test_sample_a_port_without_a_lid() -> None:
    without = with_ports(HGX, lambda port: replace(port, lid=0), "mlx5_0")
    assert status("sample-port-without-lid", without) is Status.FOUND
    assert status("sample-port-without-lid", HGX) is Status.PASSED
""",
        ),
    ),
    ("tests/probes/checks/test_faults.py", "tests/probes/checks/test_registry.py", "tests/probes/checks/nic"),
    {
        "probes/checks/nic/port_state.py": (
            "tests/probes/checks/test_faults.py::test_every_check_has_a_fault",
            "add a check to probes/checks for ['sample-port-without-lid']",
        ),
        "probes/simulation/faults/nic.py": (
            "tests/probes/checks/test_faults.py::test_every_check_has_a_fault",
            "add a fault to probes/simulation/faults for ['sample-port-without-lid']",
        ),
    },
)
PROBE = Recipe(
    (
        Change(
            "probes/facts/system/sample.py",
            '''"""A sample: the release of a package."""

from __future__ import annotations

from probes.base.frozen import frozen
from probes.base.unknown import Maybe
from probes.host.protocol import Host

PATH = "/srv/sample/release"


@frozen
class SampleFacts:
    """The package's release."""

    release: Maybe[str]


def probe(host: Host) -> SampleFacts:
    """Read the release."""
    return SampleFacts(host.read(PATH))
''',
        ),
        Change(
            "probes/snapshot/examination.py",
            "from probes.facts.system import sample\nfrom probes.facts.system.sample import SampleFacts\n",
            before="from probes.host.nvml ",
        ),
        Change(
            "probes/snapshot/examination.py",
            '    sample: Maybe[SampleFacts] = _probed("sample", lambda run: sample.probe(run.host))\n',
            before="    # From an earlier examination of the same node",
        ),
        Change(
            "probes/recording/redaction/table.py",
            '    Row("/srv/sample/*", _WORDS),\n',
            before='    Row("/.dockerenv", None),\n',
        ),
        Change("probes/recording/redaction/words.py", "    sample\n", before='"""\n# Boot loaders'),
        Change(
            "tests/probes/facts/system/test_sample.py",
            '''"""The release of a package."""

from pathlib import Path

from probes.facts.system.sample import PATH, probe
from probes.host.local import LocalHost
from tests.trees import write


def test_the_release_is_read(tmp_path: Path) -> None:
    write(tmp_path, PATH, "1.2\\n")
    assert probe(LocalHost(str(tmp_path))).release == "1.2"
''',
        ),
    ),
    (
        "tests/probes/facts/system/test_sample.py",
        "tests/probes/snapshot",
        "tests/probes/recording/test_redaction_rules.py",
        "tests/probes/recording/test_redaction_checks.py",
    ),
    {
        "probes/recording/redaction/table.py": (
            "tests/probes/recording/test_redaction_checks.py",
            "add a row to FILES in probes/recording/redaction/table.py for ['/srv/sample/release']",
        ),
        "probes/recording/redaction/words.py": (
            "tests/probes/recording/test_redaction_rules.py::test_every_path_in_the_table_is_kept",
            "add to _PATHS in probes/recording/redaction/words.py: ['sample']",
        ),
    },
)
RECIPES = {"a check": CHECK, "a probe": PROBE}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository."""
    root = tmp_path_factory.mktemp("recipes") / "repository"
    root.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, root / name)
    return root


@contextmanager
def changed(root: Path, recipe: Recipe, left_out: str = "") -> Iterator[None]:
    """The copy with a recipe's changes, but for one file."""
    before = {path: (root / path).read_bytes() for path in recipe.paths if (root / path).exists()}
    try:
        for change in recipe.changes:
            if change.path != left_out:
                change.apply(root)
        yield
    finally:
        for path in recipe.paths:
            (root / path).unlink(missing_ok=True)
        for path, content in before.items():
            (root / path).write_bytes(content)


def run_tests(root: Path, *tests: str) -> tuple[int, str]:
    """The exit status and the output of tests in the copy."""
    # An outer pytest and its plugins leave variables for their workers.
    own = ("PYTEST_", "TEXTUAL_", "PYTHONPATH", "COV_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    environment |= {"PYTHONPATH": str(root), "COLUMNS": "400"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *RUN, *tests],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("heading", RECIPES)
def test_contributing_names_the_files_of_the_recipe(heading: str) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    text = re.search(rf"^\*\*{heading}\*\*(.*?)(?=^\*\*|^## )", page, re.MULTILINE | re.DOTALL)
    assert text is not None
    unnamed = [
        path
        for path in RECIPES[heading].paths
        if path not in text[1] and f"{Path(path).parent}/" not in text[1]
    ]
    assert not unnamed, f"CONTRIBUTING.md, {heading}, does not name {unnamed}"


@pytest.mark.parametrize("heading", RECIPES)
def test_the_files_of_a_recipe_are_enough(repository: Path, heading: str) -> None:
    with changed(repository, RECIPES[heading]):
        status, output = run_tests(repository, *RECIPES[heading].tests)
    assert status == 0, output


@pytest.mark.parametrize(
    ("heading", "path"), [(heading, path) for heading, recipe in RECIPES.items() for path in recipe.missing]
)
def test_a_file_that_is_left_out_is_named(repository: Path, heading: str, path: str) -> None:
    test, message = RECIPES[heading].missing[path]
    with changed(repository, RECIPES[heading], left_out=path):
        status, output = run_tests(repository, test)
    assert status == 1, output
    assert message in output
