"""The oldest and the newest version of Textual that pyproject.toml allows: gdrtop starts, takes keys, draws.

pip installs each into a folder of its own, which comes before the installed version in the search path.
"""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tui.terminal.textual_version import TESTED_VERSIONS

ROOT = Path(__file__).parents[3]
INSTALL_SECONDS = 300
# Every frame on an emulated screen against Textual's own, with the bytes of both; keys; real terminals.
SCENARIO = ("tests/tui/terminal", "tests/tui/test_terminal_replay.py", "tests/tui/test_terminals.py")
UNTESTED = "tests/tui/test_terminal_replay.py::test_an_unknown_version_of_textual_draws_every_frame_itself"


def allowed() -> list[str]:
    """Return the requirements that select the oldest and the newest allowed version."""
    found = re.search(r'"textual>=([0-9.]+),<[0-9.]+"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert found is not None
    return [f"textual=={found[1]}", found[0].strip('"')]


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of a folder, in the checkout."""
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def passes(folder: Path, version: str, *tests: str) -> subprocess.CompletedProcess[str]:
    """Run tests with the packages of a folder, as if this version of Textual were tested."""
    code = (
        "import sys, pytest, tui.terminal.textual_version as textual_version\n"
        f"textual_version.TESTED_VERSIONS = ({version!r},)\n"
        f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-p', 'no:xdist', *{tests!r}]))"
    )
    return python(folder, "-c", code)


# As if Textual had moved these modules: what it has imported before stays.
WITHOUT_PRIVATE_MODULES = """
import asyncio, sys
import textual.screen, textual.drivers.linux_driver, textual.pilot
from unittest.mock import patch

sys.modules["textual._compositor"] = sys.modules["textual._xterm_parser"] = None
with patch("tui.terminal.textual_version.TESTED_VERSIONS", ()):
    from probes.simulation.host import SimulatedHost
    from tests.support.pilot import SteppedClock, readings, stepped_app

    async def play():
        clock = SteppedClock()
        app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
        async with app.run_test(size=(80, 24)) as pilot:
            await readings(pilot, clock, 3)
            await pilot.press("d", "escape")
            await pilot.pause()
            print(app._output.is_used, app.screen.__class__.__name__, app.crash)

    asyncio.run(play())
"""


def test_a_version_that_has_moved_its_private_modules_draws_the_dashboard() -> None:
    done = python(ROOT, "-c", WITHOUT_PRIVATE_MODULES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "OverviewScreen", "None"]


@pytest.mark.slow
@pytest.mark.parametrize("requirement", allowed())
def test_the_dashboard_works_with_an_allowed_version(requirement: str, tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path), requirement]
    try:
        installed = subprocess.run(install, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"pip did not install {requirement} within {INSTALL_SECONDS} s")
    if installed.returncode:
        pytest.skip(f"pip cannot install {requirement}: {installed.stderr.strip().splitlines()[-1:]}")
    (info,) = tmp_path.glob("textual-*.dist-info")
    version = info.name.removeprefix("textual-").removesuffix(".dist-info")
    words = python(tmp_path, "-m", "tui", "--version", "--verbose").stdout.splitlines()[-1]
    if version in TESTED_VERSIONS:
        assert words == f"Textual {version}, with gdrtop's byte-saving output"
        run = passes(tmp_path, version, *SCENARIO)
        assert run.returncode == 0, run.stdout
        return
    assert words.startswith(f"Textual {version}, with its own output: ")
    run = passes(tmp_path, version, UNTESTED)
    assert run.returncode == 0, run.stdout
    run = passes(tmp_path, version, *SCENARIO)
    result = (
        f"gdrtop's output fails with it:\n{run.stdout}" if run.returncode else "add it to TESTED_VERSIONS"
    )
    warnings.warn(f"Textual {version} is not one of the tested versions: {result}", stacklevel=1)
