"""Every output about a simulated node says so at its beginning, also what is meant to be saved."""

import shlex
from pathlib import Path

import pytest

from tui.cli import _COMMANDS, main

FAULTY = "hgx-h100+no-gdr-path"
# What each command prints of a simulated node; "": it has nothing to print here, or is about no node.
LINES = {
    "check": ("check", "check --all", "check --one-line", "check acs-redirect-enabled"),
    "forecast": ("forecast",),
    "topo": ("topo", "topo --format dot", "topo --nccl-xml"),
    "modules": ("modules",),
    "live": ("live --seconds 1",),
    "explain": ("explain", "explain 41000", "explain --job 4711"),
    "hang": ("hang 4711",),
    "ras": ("ras",),
    "do": (
        "do --list",
        f"do load-modules --dry-run --demo {FAULTY}",
        f"do load-modules --script --demo {FAULTY}",
    ),
    "repair": ("repair", f"repair --demo {FAULTY}"),
    "setup": ("setup", "setup modules", "setup --paths", f"setup --script --demo {FAULTY}"),
    "env": (
        *("env", "env --task-prolog", "env --k8s", "env --nccl-conf", "env --explain NCCL_NET_GDR_LEVEL"),
        "env --lint job.sbatch",
    ),
    "bench": ("bench --list", "bench --dry-run"),
    "prove": ("prove",),
    "reliability": ("reliability",),
    "metrics": ("metrics",),
    "report": ("report -",),
    "manifest": ("manifest helm", "manifest slurm-prolog"),
    "fleet": ("fleet", "fleet live --seconds 2", "fleet hang"),
    "read": ("read job.sbatch",),
    "diff": ("diff demo:hgx-h100 demo:hgx-h100+acs-on",),
    # Files, slurmd and a directory are told, not a reader.
    **dict.fromkeys(("record", "watch", "prolog", "epilog", "health-check"), ()),
    **dict.fromkeys(("nccl-log", "config", "schema", "help", "completion"), ()),
}
EVERY = [text for texts in LINES.values() for text in texts]
_SEEN_LINES = 12  # of a page or of metrics, whose head has several


def test_each_command_is_in_the_table() -> None:
    assert {*LINES} == {*_COMMANDS}


@pytest.mark.slow
@pytest.mark.parametrize("text", EVERY)
def test_a_simulated_node_is_named_first(
    text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    (tmp_path / "job.sbatch").write_text("#!/bin/sh\nexport NCCL_NET_GDR_LEVEL=0\n")
    words = shlex.split(text)
    if words[0] != "diff" and "--demo" not in words:
        words.append("--demo")
    main(words)
    printed = capsys.readouterr().out.splitlines()[:_SEEN_LINES]
    assert any("SIMULATED" in line or 'source="simulated"' in line for line in printed), printed
