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


def programs(folder: Path, node: str, reason: str = "none") -> dict[str, str]:
    """Replace gdrtop by one that reads a simulated node, and Slurm's commands."""
    scripts = {
        "gdrtop": f'exec {sys.executable} -m tui --demo {node} "$@"' if node else "exit 3",
        "sinfo": f"echo '{reason}'; echo '{reason}'",  # a line for each partition
        "scontrol": 'printf "%s\\n" "$@"',
    }
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    root = str(Path(__file__).parents[4])
    return {"PATH": f"{folder}:{os.defpath}", "PYTHONPATH": root, "SLURMD_NODENAME": "gpu07"}


@pytest.mark.parametrize(
    ("node", "reason", "printed"),
    [
        ("hgx-h100+no-gdr-path", "none", "reason=gdrtop: SIMULATED hgx-h100+no-gdr-path: peermem-not-loaded"),
        ("hgx-h100+no-gdr-path", "gdrtop: port-down mlx5_3", "reason=gdrtop: SIMULATED hgx-h100+no-gdr-path"),
        ("hgx-h100+no-gdr-path", "disk is being replaced", ""),
        ("hgx-h100+acs-on", "none", ""),
        ("", "none", ""),
    ],
)
def test_slurm_drains_a_broken_node_and_keeps_the_reason_of_others(
    node: str, reason: str, printed: str, tmp_path: Path
) -> None:
    environment = programs(tmp_path, node, reason)
    script = block("Slurm").replace("PATH=/usr/sbin", f"PATH={tmp_path}:/usr/sbin")
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"update\nnodename=gpu07\nstate=DRAIN\n{printed}" if printed else "")
    assert bool(done.stdout) is bool(printed)


@pytest.mark.skipif(shutil.which("bash") is None, reason="NHC is a bash program")
@pytest.mark.parametrize(
    ("node", "status", "printed"),
    [
        ("hgx-h100+no-gdr-path", 1, "check_gdrtop:  SIMULATED hgx-h100+no-gdr-path: peermem-not-loaded"),
        ("hgx-h100", 0, ""),
        ("", 0, ""),
    ],
)
def test_nhc_takes_a_broken_node_offline_and_no_other(
    node: str, status: int, printed: str, tmp_path: Path
) -> None:
    script = f"{NHC}{block('Node Health Check')}\ncheck_gdrtop"
    done = subprocess.run(
        ["bash", "-c", script], env=programs(tmp_path, node), capture_output=True, text=True, check=False
    )
    assert (done.returncode, bool(done.stdout)) == (status, bool(printed))
    assert done.stdout.startswith(printed)


def test_the_configuration_of_the_node_problem_detector_is_consistent() -> None:
    """A rule's condition exists, its time limit is at most the global one, and reasons have no spaces."""
    configuration = json.loads(block("Node Problem Detector"))
    (rule,) = configuration["rules"]
    (condition,) = configuration["conditions"]
    assert rule["condition"] == condition["type"]
    assert rule["timeout"] == configuration["pluginConfig"]["timeout"]
    assert rule["args"] == ["check", "--for", "npd"]
    assert rule["reason"].isalnum()
    assert condition["reason"].isalnum()
