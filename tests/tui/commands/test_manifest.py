"""`gdrtop manifest`: what it prints, what it writes, and what it refuses."""

import stat
from pathlib import Path

import pytest
import yaml

from tui.cli import main


def test_a_manifest_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifest", "helm", "--demo", "gb200", "--driver", "operator"]) == 0
    values = yaml.safe_load(capsys.readouterr().out)
    assert values["driver"]["kernelModuleType"] == "open"


def test_ascii_is_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifest", "modules-load", "--demo", "gb200", "--ascii"]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert "4 x NVIDIA GB200" in out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["modules-load", "--driver", "operator"], "the GPU Operator installs the driver"),
        (["talos", "--path", "peermem", "--talos-version", "1.14"], "Talos has no OFED"),
        (["talos"], "--talos-version"),
        (["modules-load", "--drop-in"], "openibd needs no drop-in"),
    ],
)
def test_what_does_not_fit_the_node_is_refused(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["manifest", *arguments, "--demo", "gb200"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert reason in printed.err


@pytest.mark.parametrize("path", [[], ["--path", "dmabuf"]])
def test_hardware_that_can_never_work_gets_no_manifest(
    path: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["manifest", "modules-load", *path, "--demo", "dgx-spark"]) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "GPUDirect RDMA cannot work on it" in printed.err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["clusterpolcy"], "did you mean clusterpolicy"),
        (["machineconfig", "--role", "a\nb"], "--role"),
        (["machineconfig", "--role", "-x"], "--role"),
        (["talos", "--talos-version", "new"], "--talos-version"),
        (["helm", "--drop-in"], "--drop-in"),
    ],
)
def test_wrong_usage_is_status_3(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["manifest", *arguments, "--demo", "gb200"]) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert error in printed.err


def test_a_file_is_new_and_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "patch.yaml"
    arguments = ["manifest", "clusterpolicy", "--demo", "gb200", "--output", str(file)]
    assert main(arguments) == 0
    text = file.read_text(encoding="utf-8")
    assert yaml.safe_load(text)["spec"]["driver"] == {"enabled": False}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert capsys.readouterr().out == ""
    assert main([*arguments[:-1], str(file), "--path", "peermem"]) == 3
    assert "already exists" in capsys.readouterr().err
    assert file.read_text(encoding="utf-8") == text


def test_a_refused_manifest_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "talos.yaml"
    assert main(["manifest", "talos", "--demo", "gb200", "-o", str(file)]) == 2
    assert list(tmp_path.iterdir()) == []
    assert "wrote" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "instead"),
    [
        ("daemonset", "Helm chart"),
        ("npd", "Helm chart"),
        ("nfd", "gdrtop check --for nfd"),
        ("dra", "gdrtop help kubernetes"),
        ("container", "gdrtop help kubernetes"),
        ("gres", "gdrtop help slurm"),
    ],
)
def test_a_kind_of_an_older_version_says_what_replaces_it(
    kind: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["manifest", kind, "--demo"]) == 3
    error = capsys.readouterr().err
    assert f"there is no manifest {kind} any more" in error
    assert instead in error
