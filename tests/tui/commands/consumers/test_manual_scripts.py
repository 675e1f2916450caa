"""The scripts of `gdrtop help consumers`, run as their programs run them, with those programs replaced."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tui.manual import page

CANNOT_START = "cannot start"  # in place of a node: Python does not find gdrtop's modules
# As in NHC's nhc and scripts/common.nhc, without its log: a function that ends the check, and a time limit.
NHC = """
die() { eval printf '%s' "'$2'"; exit "$1"; }
nhc_cmd_with_timeout() { shift; "$@"; }
"""


def block(heading: str, place: int = 0) -> str:
    """An indented block below a heading of the page."""
    section = page("consumers").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = [text for text in section.split("\n\n") if text.startswith("    ")]
    return textwrap.dedent(blocks[place])


def with_gdrtop(folder: Path, node: str) -> dict[str, str]:
    """Return the environment in which gdrtop reads a simulated node, or fails if it has no name."""
    text = f'exec {sys.executable} -m tui --demo {node} "$@"' if node else "exit 3"
    text = f"exec {sys.executable} -c 'import not_there'" if node == CANNOT_START else text
    (folder / "gdrtop").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "gdrtop").chmod(0o755)
    return {"PATH": f"{folder}:{os.defpath}", "PYTHONPATH": str(Path(__file__).parents[4])}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="NHC is a bash program")
@pytest.mark.parametrize(
    ("node", "status", "printed"),
    [
        ("hgx-h100+no-gdr-path", 1, "check_gdrtop:  SIMULATED hgx-h100+no-gdr-path: peermem-not-loaded"),
        ("hgx-h100", 0, ""),
        ("", 0, ""),
        (CANNOT_START, 0, ""),
    ],
)
def test_nhc_takes_a_broken_node_offline_and_no_other(
    node: str, status: int, printed: str, tmp_path: Path
) -> None:
    script = f"{NHC}{block('Node Health Check')}\ncheck_gdrtop"
    done = subprocess.run(
        ["bash", "-c", script], env=with_gdrtop(tmp_path, node), capture_output=True, text=True, check=False
    )
    assert (done.returncode, bool(done.stdout)) == (status, bool(printed))
    assert done.stdout.startswith(printed)


@pytest.mark.parametrize(
    ("body", "status", "printed"),
    [
        ("echo BROKEN; exit 1", 1, "BROKEN"),
        ("echo READY", 0, "READY"),
        ("exit 1", 3, ""),  # as a Python that cannot start
        ("kill -9 $$", 137, ""),
        (None, 127, ""),
    ],
)
def test_the_node_problem_detector_takes_no_failure_of_gdrtop_for_a_problem(
    body: str | None, status: int, printed: str, tmp_path: Path
) -> None:
    (rule,) = json.loads(block("Node Problem Detector"))["rules"]
    gdrtop = tmp_path / "gdrtop"
    if body is not None:
        gdrtop.write_text(f"#!/bin/sh\n{body}\n")
        gdrtop.chmod(0o755)
    arguments = [str(gdrtop) if word.endswith("/gdrtop") else word for word in rule["args"]]
    done = subprocess.run([rule["path"], *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (status, printed)


def test_the_configuration_of_the_node_problem_detector_is_consistent() -> None:
    """A rule's condition exists, its time limit is at most the global one, and reasons have no spaces."""
    configuration = json.loads(block("Node Problem Detector"))
    (rule,) = configuration["rules"]
    (condition,) = configuration["conditions"]
    assert rule["condition"] == condition["type"]
    assert rule["timeout"] == configuration["pluginConfig"]["timeout"]
    assert rule["args"][2:] == ["/usr/bin/gdrtop", "check", "--for", "npd"]
    assert rule["reason"].isalnum()
    assert condition["reason"].isalnum()
