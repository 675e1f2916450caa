"""`gdrtop fleet check` as a command: which nodes it asks, what it saves, and what it says about them."""

import json
import os
import re
import shlex
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from probes.host import trusted_path
from probes.host.machine import command
from tests.support.local_node import write_program
from tests.support.process_families import ROOT
from tests.support.saved_answers import save_answers
from tui.cli import main

_REFUSING = "sh -c 'echo \"x: Permission denied (publickey)\" >&2; exit 255' {host}"
# Faults that are planted in one of 64 nodes each, and the word of the verdict.
PLANTED = {
    "acs-on": ("DEGRADED", "acs-redirect-enabled"),
    "nvidia-not-loaded": ("BROKEN", "nvidia-not-loaded"),
}
_IDENTIFIERS = re.compile(
    rb"\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b"  # MAC addresses
    rb"|\b(?!0000|fe80)[0-9a-f]{4}(?::[0-9a-f]{4}){3}\b"  # GUIDs
    rb"|\b10(?:\.[0-9]{1,3}){3}\b"  # IP addresses
    rb"|\b(?!8be4df61|4a67b082)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"  # UUIDs, not EFI variables'
)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Write sinfo or squeue to the trusted path."""
    monkeypatch.setattr(command, "TRUSTED_PATH", (str(tmp_path), "/usr/bin", "/bin"))
    return lambda name, script: write_program(tmp_path / name, script)


def asked(words: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, list[str], str]:
    """Check nodes that all refuse; return the status, which nodes they were, and the errors."""
    status = main(["fleet", *shlex.split(words), "--json", "--over", _REFUSING])
    printed = capfd.readouterr()
    document: dict[str, Any] = json.loads(printed.out) if printed.out else {"unanswered": []}
    return status, [node["node"] for node in document["unanswered"]], printed.err


@pytest.mark.slow
def test_the_nodes_of_a_slurm_partition_and_of_a_job_are_asked(
    slurm: Callable[[str, str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    slurm("sinfo", '[ "$*" = "-h -N -p h100 -o %N" ] && printf "gpu001\\ngpu002\\ngpu001\\n"')
    slurm("squeue", '[ "$*" = "-h -j 4711 -o %N" ] && echo "gpu[007-009]"')
    assert asked("--slurm h100", capfd) == (3, ["gpu001", "gpu002"], "")
    assert asked("--slurm 4711", capfd) == (3, ["gpu007", "gpu008", "gpu009"], "")


def test_slurm_that_knows_no_such_partition_or_job_is_an_error(
    slurm: Callable[[str, str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    slurm("sinfo", "exit 0")  # it lists no node, and that is no error to it
    slurm("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    status, nodes, errors = asked("--slurm nope", capfd)
    assert (status, nodes) == (3, [])
    assert "gdrtop: Slurm's partition nope has no node" in errors
    status, nodes, errors = asked("--slurm 4711", capfd)
    assert (status, nodes) == (3, [])
    assert "squeue does not list the nodes of job 4711: slurm_load_jobs error: Invalid job id" in errors


def test_a_group_of_the_site_is_asked_and_an_unknown_one_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(trusted_path, "is_root", lambda: False)
    directory = tmp_path / "clustershell"
    directory.mkdir()
    (directory / "groups.conf").write_text("[Main]\ndefault: site\nautodir: $CFGDIR\n")
    (directory / "site.yaml").write_text("site:\n  rack1: 'gpu[1-2]'\n")
    assert asked("-w @rack1", capfd) == (3, ["gpu1", "gpu2"], "")
    status, nodes, errors = asked("-w login1,@rack2", capfd)
    assert (status, nodes) == (3, [])
    assert "gdrtop: there is no group @rack2; gdrtop looked for groups in /etc/clustershell/" in errors
    assert str(directory / "groups.conf") in errors


def test_root_runs_no_command_of_a_groups_file_that_another_user_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(trusted_path, "is_root", lambda: True)
    directory = tmp_path / "clustershell"
    directory.mkdir()
    directory.chmod(0o777)
    (directory / "groups.conf").write_text(
        f"[Main]\ndefault: evil\n[evil]\nmap: touch {tmp_path}/ran; echo n1\n"
    )
    status, nodes, errors = asked("-w @x", capfd)
    assert (status, nodes) == (3, [])
    assert f"gdrtop: {directory}/groups.conf is not read: other users can write to " in errors
    assert "there is no group @x" in errors
    assert not (tmp_path / "ran").exists()


def test_root_runs_no_command_of_a_file_that_a_trusted_groups_file_includes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(trusted_path, "is_root", lambda: True)
    monkeypatch.setattr(
        trusted_path, "require_path", partial(trusted_path.require_path, top=str(tmp_path / "clustershell"))
    )
    (tmp_path / "clustershell" / "groups.conf.d").mkdir(parents=True, mode=0o755)
    config, more = tmp_path / "clustershell/groups.conf", tmp_path / "clustershell/groups.conf.d/more.conf"
    config.write_text("[Main]\nconfdir: $CFGDIR/groups.conf.d\ndefault: more\n")
    more.write_text(f"[more]\nmap: touch {tmp_path}/ran; echo n1\n")
    more.chmod(0o644)
    assert asked("-w @x", capfd)[1] == ["n1"]
    (tmp_path / "ran").unlink()
    more.chmod(0o666)
    status, nodes, errors = asked("-w @x", capfd)
    assert (status, nodes) == (3, [])
    assert f"{more}, named in {config}, is not read: other users can write to {more}" in errors
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("mistake", ["[task.info]\ncommand_timeout: abc\n", "no section\n"])
def test_what_clustershell_would_read_by_itself_is_not_read(tmp_path: Path, mistake: str) -> None:
    """Its defaults.conf names modules to import, and a mistake in it would end gdrtop."""
    (tmp_path / "defaults.conf").write_text(f"[task.default]\nlocal_workername: os\n{mistake}")
    script = (
        "from probes.host.remote.cluster_shell import NodeSet\n"
        "from ClusterShell.Defaults import DEFAULTS\n"
        "print(DEFAULTS.local_workername, NodeSet('n[1-2]'))\n"
    )
    variables = {**os.environ, "CLUSTERSHELL_CFGDIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=variables, capture_output=True, text=True
    )
    assert (ran.stdout, ran.stderr) == ("exec n[1-2]\n", "")


@pytest.mark.slow
def test_a_node_whose_recording_cannot_be_written_is_judged_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("gpu1", "gpu2", "gpu3", "gpu4", "gpu5", "gpu6"):
        (tmp_path / f"{name.replace('gpu', 'gpu0')}.tar.gz").touch()
    status = main(["fleet", "--demo", "cloud-vm*7", "--save", str(tmp_path), "--json"])
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (status, document["exit_status"]) == (3, 3)
    assert (len(document["nodes"]), document["unanswered"]) == (7, [])
    assert f"gdrtop: not saved: {tmp_path}/gpu01.tar.gz already exists" in printed.err
    assert printed.err.splitlines()[5:] == ["gdrtop: not saved: 1 more node"]
    assert (tmp_path / "gpu07.tar.gz").stat().st_size
    assert len(list(tmp_path.iterdir())) == 7  # and no unfinished file


def content(recording: Path) -> bytes:
    """Everything in a recording, with the names of its members."""
    parts: list[bytes] = []
    with tarfile.open(recording) as archive:
        for member in archive:
            file = archive.extractfile(member)
            parts += [member.name.encode(), b"" if file is None else file.read()]
    return b"\n".join(parts)


@pytest.mark.slow
def test_nothing_of_a_saved_node_is_left_unredacted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fleet = "zebra1=hgx-h100;zebra2=hgx-h100"
    over = shlex.join([sys.executable, "-m", "tests.support.stand_in", fleet, "{host}"])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for name, more in (("plain", []), ("redacted", ["--redact"])):
            words = ["fleet", "-w", "zebra[1-2]", "--over", over, "--save", str(tmp_path / name), *more]
            assert main(words) == 0, capfd.readouterr()
    plain, redacted = (sorted((tmp_path / name).iterdir()) for name in ("plain", "redacted"))
    assert [path.name for path in plain] == ["zebra1.tar.gz", "zebra2.tar.gz"]
    assert [path.name for path in redacted] == ["node0001.tar.gz", "node0002.tar.gz"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (*plain, *redacted)} == {0o600}
    before, after = (b"\n".join(map(content, paths)) for paths in (plain, redacted))
    identifiers = {*_IDENTIFIERS.findall(before), b"zebra", b"alice"}
    assert len(identifiers) > 20
    assert [word for word in sorted(identifiers) if word in after] == []
    capfd.readouterr()
    assert main(["fleet", "--from", str(tmp_path / "redacted")]) == 0
    assert "\n2 nodes: 2 ACTIVE\n" in capfd.readouterr().out


@pytest.mark.slow
def test_a_fault_in_one_of_64_nodes_is_on_top_of_the_answer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    over = save_answers(tmp_path, "hgx-h100", {fault: f"hgx-h100+{fault}" for fault in PLANTED})
    for fault, (verdict, check) in PLANTED.items():
        status = main(["fleet", "-w", f"gpu[01-63],{fault}", "--over", over])
        _, first, _, worst, finding, *_ = capfd.readouterr().out.splitlines()
        assert first == f"64 nodes: 63 ACTIVE, 1 {verdict}"
        assert verdict in worst
        assert worst.endswith(f"  {fault}")
        assert f"({check})" in finding
        assert status in (1, 2)
