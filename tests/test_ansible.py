"""The Ansible role installs, configures and removes gdrtop, and a second run changes nothing."""

import json
import os
import subprocess
import sys
import zipapp
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.test_workflows import TOOLS, YAML_RULES

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tui" / "deploy" / "ansible"
# This machine may have no GPU, and then gets no prolog.
START = f"""\
import sys
sys.path[:0] = [{str(ROOT)!r}]
from tui.launch import main
sys.argv += ["--demo", "hgx-h100"] if "slurm-prolog" in sys.argv else []
sys.exit(main())
"""


pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("ansible"),
    pytest.mark.skipif(
        not (TOOLS / "ansible-playbook").exists(), reason="Ansible is not installed; run make test-slow once"
    ),
]


def run(home: Path, *argv: str, **variables: str) -> str:
    """What a program of Ansible prints; it must succeed."""
    environment = {
        **{"PATH": f"{TOOLS}:{os.environ['PATH']}", "HOME": str(home), "LC_ALL": "C.UTF-8"},
        **{
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCALHOST_WARNING": "false",
            "ANSIBLE_HOME": str(home),
            **variables,
        },
    }
    done = subprocess.run(argv, cwd=FOLDER, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, Any]:
    """A node below a directory, and what its site wants."""
    check = tmp_path / "scratch"
    check.write_text("#!/bin/sh\necho mounted\n")
    node = tmp_path / "node"
    places = {
        "bin": "bin",
        "venv": "opt",
        "cache": "cache",
        "etc": "etc",
        "units": "units",
        "slurm_etc": "slurm",
    }
    (node / "bin").mkdir(parents=True)
    (node / "units").mkdir()
    return {
        **{f"gdrtop_{name}": str(node / place) for name, place in places.items()},
        "gdrtop_motd": str(node / "60-gdrtop"),
        "gdrtop_package": str(pyz(tmp_path)),
        "gdrtop_config": "interval = 2\n",
        "gdrtop_checks": [str(check)],
        "gdrtop_hold_back": ["slurmd"],
        "gdrtop_metrics_file": "/var/lib/node_exporter/gdrtop.prom",
        "gdrtop_watch": "true",  # as -e gives it
        "gdrtop_slurm": True,
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
    }


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., dict[str, int]]:
    """Plays the role on this machine and returns how many tasks changed, failed and so on."""

    def played(variables: dict[str, Any], *options: str) -> dict[str, int]:
        command = ["ansible-playbook", "-i", "localhost,", "-c", "local", "-e", json.dumps(variables)]
        told = run(
            tmp_path, *command, *options, "site.yml", ANSIBLE_STDOUT_CALLBACK="ansible.builtin.default"
        )
        words = told.rpartition("PLAY RECAP")[2].split()
        return {name: int(number) for name, number in (word.split("=") for word in words if "=" in word)}

    return played


def pyz(folder: Path) -> Path:
    """A .pyz that runs this checkout."""
    (folder / "program").mkdir()
    (folder / "program/__main__.py").write_text(START)
    package = folder / "gdrtop-0.3.0-x86_64.pyz"
    zipapp.create_archive(folder / "program", package, sys.executable)
    return package


def wheel(folder: Path) -> Path:
    """A wheel that runs this checkout."""
    about = "gdrtop-0.3.0.dist-info"
    files = {
        "gdrtop.py": "import subprocess, sys\n\n\ndef main():\n"
        f"    sys.exit(subprocess.call([{sys.executable!r}, '-c', {START!r}, *sys.argv[1:]]))\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: gdrtop\nVersion: 0.3.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": "[console_scripts]\ngdrtop = gdrtop:main\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    package = folder / "gdrtop-0.3.0-py3-none-any.whl"
    with zipfile.ZipFile(package, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return package


def tree(variables: dict[str, Any]) -> dict[str, int]:
    """The files below the node with their modes."""
    node = Path(variables["gdrtop_units"]).parent
    files = (path for path in node.rglob("*") if path.is_file() and "opt" not in path.parts)
    return {str(path.relative_to(node)): path.stat().st_mode & 0o777 for path in files}


def test_a_second_run_changes_nothing_and_removal_leaves_nothing(
    play: Callable[..., dict[str, int]], variables: dict[str, Any]
) -> None:
    assert play(variables, "--check")["changed"] > 0
    assert tree(variables) == {}

    assert play(variables)["failed"] == 0
    assert tree(variables) == {
        "bin/gdrtop": 0o755,
        "cache/gdrtop-0.3.0-x86_64.pyz": 0o644,
        "etc/config.toml": 0o644,
        "etc/checks.d/scratch": 0o755,
        "60-gdrtop": 0o755,
        "units/gdrtop-boot-check.service": 0o644,
        "units/slurmd.service.d/gdrtop-boot-check.conf": 0o644,
        "units/gdrtop-metrics.service": 0o644,
        "units/gdrtop-metrics.timer": 0o644,
        "units/gdrtop-watch.service": 0o644,
        "slurm/prolog.d/50-gdrtop.sh": 0o755,
        "slurm/epilog.d/50-gdrtop.sh": 0o755,
        "slurm/gdrtop-health-check": 0o755,
    }
    program = Path(variables["gdrtop_bin"]) / "gdrtop"
    for unit in ("boot-check", "metrics", "watch"):
        text = (Path(variables["gdrtop_units"]) / f"gdrtop-{unit}.service").read_text()
        assert f"ExecStart={program} " in text
    prolog = Path(variables["gdrtop_slurm_etc"]) / "prolog.d/50-gdrtop.sh"
    assert "\nOPTIONS=--log-only\n" in prolog.read_text()
    assert play(variables)["changed"] == 0
    assert play(variables, "--check")["changed"] == 0

    fewer = {**variables, "gdrtop_hold_back": [], "gdrtop_watch": False, "gdrtop_slurm_drains": True}
    assert play(fewer)["changed"] == 3
    assert not [name for name in tree(fewer) if "watch" in name or "slurmd" in name]
    assert "\nOPTIONS=\n" in prolog.read_text()

    gone = {**variables, "gdrtop_state": "absent"}
    assert play(gone, "--check")["changed"] > 0
    assert len(tree(gone)) == 11
    assert play(gone)["failed"] == 0
    assert tree(gone) == {}
    assert play(gone)["changed"] == 0


def test_a_wheel_goes_into_an_environment_of_its_own(
    play: Callable[..., dict[str, int]], variables: dict[str, Any], tmp_path: Path
) -> None:
    options = {"gdrtop_package": str(wheel(tmp_path)), "gdrtop_pip_arguments": "--no-index --no-deps"}
    wanted = {**variables, **options, "gdrtop_python": sys.executable}
    assert play(wanted, "--check")["failed"] == 0
    assert play(wanted)["failed"] == 0
    link = Path(wanted["gdrtop_bin"]) / "gdrtop"
    assert link.readlink() == Path(wanted["gdrtop_venv"]) / "bin/gdrtop"
    assert run(tmp_path, str(link), "--version").startswith("gdrtop ")
    assert play(wanted)["changed"] == 0


def test_a_wrong_variable_stops_the_play(variables: dict[str, Any], tmp_path: Path) -> None:
    wrong = {**variables, "gdrtop_state": "on"}
    command = [
        TOOLS / "ansible-playbook",
        "-i",
        "localhost,",
        "-c",
        "local",
        "-e",
        json.dumps(wrong),
        "site.yml",
    ]
    done = subprocess.run(
        command, cwd=FOLDER, capture_output=True, text=True, env={**os.environ, "HOME": str(tmp_path)}
    )
    assert done.returncode != 0
    assert "value of gdrtop_state must be one of" in done.stdout
    assert tree(variables) == {}


def test_the_linters_find_nothing(tmp_path: Path) -> None:
    run(tmp_path, "ansible-playbook", "-i", "localhost,", "--syntax-check", "site.yml")
    run(tmp_path, "ansible-lint", "--offline", "--strict", "--nocolor", "site.yml", "roles")
    rules = YAML_RULES.replace(
        "130}", "130}, braces: {max-spaces-inside: 1}, octal-values: {forbid-implicit-octal: true}"
    )
    run(tmp_path, "yamllint", "--strict", "--config-data", rules, ".")
