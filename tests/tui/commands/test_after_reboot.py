"""`gdrtop forecast`: text, JSON, exit status, wrong usage."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from probes.recording.recording_host import Moment, RecordingHost
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from tests.support.documents import valid
from tests.support.pilot import SteppedClock
from tests.support.recordings import archive_of, moments_of
from tests.support.tiers import usual
from tui.cli import main
from tui.command_line.options import OutputOptions
from tui.commands.forecast import write_forecast
from tui.runtime.node_monitor import NodeMonitor

FAULTY = "dgx-a100+peermem-built-without-symbols"


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(simulated_names(), {"hgx-h100", "slingshot", "aws-p5"}))
def test_the_forecast_of_every_node_is_what_the_schema_says(name: str) -> None:
    out = io.StringIO()
    write_forecast(SimulatedHost(name, clock=SteppedClock()), out, "", OutputOptions(json=True))
    document = valid("forecast", out.getvalue())
    states = {kernel["verdict"]["state"] for kernel in document["kernels"]}
    assert "ACTIVE" not in states  # no job runs after a boot


@pytest.mark.slow
@pytest.mark.parametrize(("name", "status", "outlook"), [("hgx-h100", 0, "will"), (FAULTY, 2, "will not")])
def test_the_forecast_as_json_is_what_its_schema_says(name: str, status: int, outlook: str) -> None:
    out = io.StringIO()
    assert (
        write_forecast(SimulatedHost(name, clock=SteppedClock()), out, "", OutputOptions(json=True)) == status
    )
    document = valid("forecast", out.getvalue())
    assert document["exit_status"] == status
    kernel = next(kernel for kernel in document["kernels"] if kernel["release"] == document["kernel"])
    assert kernel["outlook"] == outlook


@pytest.mark.slow
def test_the_forecast_as_text_names_kernel_and_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forecast", "--demo", "hgx-h100"]) == 0
    out = capsys.readouterr().out
    title = "✓ After a reboot into 6.8.0-60-generic: GPUDirect RDMA will work (via DMA-BUF, 8 of 8 GPUs)"
    assert title in out
    assert "Unknown until the boot: the contents of the boot image" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("aws-p5+efa-not-loaded", 3, "only known once efa is loaded"),
        ("slingshot+cxi-ss1-not-loaded", 3, "only known once cxi_ss1 is loaded"),
        ("pcie-l40s", 1, "▲ After a reboot"),
        (FAULTY, 2, "✗ After a reboot"),
    ],
)
def test_headline_and_exit_status_are_those_of_one_verdict(
    name: str, status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forecast", "--demo", name]) == status
    out = capsys.readouterr().out
    assert words in " ".join(out.split())
    assert "there is no RDMA NIC" not in out


@pytest.mark.slow
def test_an_image_as_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forecast", "--image", str(tmp_path), "--as", "hgx-h100"]) == 2
    out = capsys.readouterr().out
    assert f"IMAGE {tmp_path}" in out
    assert "Container image; the hardware is assumed: hgx-h100, 8 GPUs" in out
    assert "✗ Programs in this image: GPUDirect RDMA will not work" in out
    assert "libibverbs or its provider for these NICs is not installed" in out
    assert main(["forecast", "--image", str(tmp_path), "--as", "hgx-h100", "--json"]) == 2
    document = valid("image", capsys.readouterr().out)
    assert (document["kind"], document["assumed_hardware"]) == ("container image", "hgx-h100")
    assert document["source"] == "tree"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kernel", "9.9"], "kernel '9.9' is not installed; installed: 6.8.0-60-generic"),
        (["--image", "/tmp", "--as", "hgx-h100"], "takes no --demo"),
    ],
)
def test_wrong_usage_says_what_is_right(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forecast", "--demo", "hgx-h100", *arguments]) == 3
    assert words in capsys.readouterr().err


def test_an_unknown_node_to_assume_is_told_the_nearest_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forecast", "--image", str(tmp_path), "--as", "dgx-a10"]) == 3
    assert "did you mean dgx-a100 or" in capsys.readouterr().err


def test_setup_refuses_an_image_and_names_the_command_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["setup", "--root", str(tmp_path)]) == 3
    assert "gdrtop forecast --image DIR --as NODE" in capsys.readouterr().err


@pytest.mark.slow
def test_a_recording_can_be_the_hardware_of_an_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "node.tar.gz"
    clock = SteppedClock()
    file.write_bytes(archive_of(moments_of(SimulatedHost("hgx-h100", clock=clock), clock)))
    image = tmp_path / "image"
    image.mkdir()
    assert main(["forecast", "--image", str(image), "--as", str(file)]) == 2
    assert "8 GPUs" in capsys.readouterr().out


@pytest.mark.slow
def test_the_forecast_of_a_recording_does_not_say_that_a_running_service_will_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The driver's file, and with it the version for Fabric Manager, is in no recording."""
    file, clock = tmp_path / "node.tar.gz", SteppedClock()
    host = RecordingHost(SimulatedHost("aws-p5", clock=clock), lambda moment: moments.append(moment))
    moments: list[Moment] = []
    monitor = NodeMonitor(host)
    monitor.read()
    monitor.check()
    host.end_moment()
    file.write_bytes(archive_of(moments, label="aws-p5"))
    assert main(["forecast", "--replay", str(file)]) == 0
    out = capsys.readouterr().out
    assert "GPUDirect RDMA will work" in out
    assert "Fabric Manager is not running" not in out


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forecast", "--demo", "hgx-h100", "--quiet"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--as", "hgx-h100"], "--as needs --image"), (["--image", "/tmp"], "--image needs --as")],
)
def test_what_a_forecast_cannot_combine_is_said(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forecast", *arguments]) == 3
    assert said in capsys.readouterr().err
