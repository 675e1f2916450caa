"""`gdrtop check --after-reboot` and `check --as`: text, JSON, exit status, wrong usage."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from probes.simulation.host import SimulatedHost
from tests.tui.commands.test_schema import valid
from tests.tui.pilot import SteppedClock
from tui.cli import main
from tui.commands.after_reboot import write_forecast

FAULTY = "dgx-a100+peermem-built-without-symbols"


@pytest.mark.parametrize(("name", "status", "outlook"), [("hgx-h100", 0, "will"), (FAULTY, 2, "will not")])
def test_the_forecast_as_json_is_what_its_schema_says(name: str, status: int, outlook: str) -> None:
    out = io.StringIO()
    assert write_forecast(SimulatedHost(name, clock=SteppedClock()), out, as_json=True) == status
    document = valid("forecast", out.getvalue())
    assert document["exit_status"] == status
    kernel = next(one for one in document["kernels"] if one["release"] == document["kernel"])
    assert kernel["outlook"] == outlook


def test_the_forecast_as_text_names_kernel_and_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--demo", "hgx-h100", "--after-reboot"]) == 0
    out = capsys.readouterr().out
    assert "✓ After a reboot into 6.8.0-60-generic: GPUDirect RDMA will work (via DMA-BUF)" in out
    assert "Not known from files: the contents of the boot image" in out


def test_an_image_as_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--root", str(tmp_path), "--as", "hgx-h100"]) == 2
    out = capsys.readouterr().out
    assert f"IMAGE {tmp_path}" in out
    assert "Container image; the hardware is assumed: hgx-h100, 8 GPUs" in out
    assert "libibverbs.so.1 is missing" in out
    assert "need the running node" in out
    assert main(["check", "--root", str(tmp_path), "--as", "hgx-h100", "--json"]) == 2
    document = valid("image", capsys.readouterr().out)
    assert (document["kind"], document["assumed_hardware"]) == ("container image", "hgx-h100")
    assert document["source"] == "tree"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kernel", "6.8.0"], "--kernel needs --after-reboot"),
        (["--after-reboot", "--kernel", "9.9"], "kernel '9.9' is not installed; installed: 6.8.0-60-generic"),
        (["--after-reboot", "--all"], "--after-reboot takes no ID, --only, --skip or --all"),
        (["--as", "hgx-h100"], "name its directory with --root"),
        (["--as", "hgx-h100", "--after-reboot"], "use one of them"),
    ],
)
def test_wrong_usage_says_what_is_right(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--demo", "hgx-h100", *arguments]) == 3
    assert words in capsys.readouterr().err


def test_an_unknown_node_to_assume_lists_those_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--root", str(tmp_path), "--as", "dgx-a10"]) == 3
    assert "choose one of hgx-h100" in capsys.readouterr().err
