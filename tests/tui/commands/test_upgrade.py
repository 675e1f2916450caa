"""`gdrtop forecast --upgrade`: text, JSON, exit status, what is refused."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.protocol import CommandOutput
from probes.simulation.host import SimulatedHost
from tests.support.documents import valid
from tests.support.pilot import SteppedClock
from tui.cli import main
from tui.command_line.arguments import UsageError
from tui.command_line.options import OutputOptions
from tui.commands.forecast import write_advice

KERNEL = "Inst linux-image-6.8.0-90-generic (6.8.0-90.91 Ubuntu:24.04/noble-updates [amd64])\n"
CURL = "Inst curl [8.5.0-2] (8.5.0-3 Ubuntu:24.04 [amd64])\n"


class Answering(SimulatedHost):
    """A simulated node whose package manager prints this."""

    def __init__(self, name: str, answer: str | Unknown) -> None:
        super().__init__(name, clock=SteppedClock())
        self.answer = answer
        self.asked: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        if argv[0] not in ("apt-get", "dnf", "zypper"):
            return super().run(argv, seconds)
        self.asked.append(tuple(argv))
        if isinstance(self.answer, Unknown):
            return self.answer
        return CommandOutput(tuple(argv), 0, self.answer, "")


def test_the_packages_that_matter_and_the_outlook_are_shown() -> None:
    out, host = io.StringIO(), Answering("hgx-h100", KERNEL + CURL)
    assert write_advice(host, "apt-get dist-upgrade", out, OutputOptions()) == 2
    text = " ".join(out.getvalue().split())
    assert "After the upgrade and a reboot into 6.8.0-90-generic: GPUDirect RDMA will not work" in text
    assert "2 packages would change; 1 of them concerns GPUDirect RDMA:" in text
    assert "linux-image-6.8.0-90-generic new: 6.8.0-90.91 kernel" in text
    assert "install linux-headers-6.8.0-90-generic" in text
    assert "Assumed: packages install without errors" in text
    assert [argv[:2] for argv in host.asked] == [("apt-get", "--simulate")]


def test_a_module_that_may_not_load_is_no_path_that_works_in_part() -> None:
    out = io.StringIO()
    replaced = "Inst mlnx-ofed-kernel-dkms [24.10-1] (25.07.OFED.25.07.0.9.7.1-1 DOCA:3.1 [all])\n"
    assert write_advice(Answering("dgx-a100", replaced), "apt-get upgrade", out, OutputOptions()) == 1
    assert "GPUDirect RDMA may not work (via peermem, 8 of 8 GPUs)" in " ".join(out.getvalue().split())


def test_an_upgrade_that_does_not_matter_is_fine() -> None:
    out = io.StringIO()
    assert write_advice(Answering("hgx-h100", CURL), "apt-get upgrade", out, OutputOptions()) == 0
    assert "1 package would change, none of which GPUDirect RDMA uses." in out.getvalue()


def test_nothing_to_upgrade_is_said() -> None:
    out, nothing = io.StringIO(), "0 upgraded, 0 newly installed, 0 to remove and 0 not upgraded.\n"
    assert write_advice(Answering("hgx-h100", nothing), "apt-get upgrade", out, OutputOptions()) == 0
    assert "The upgrade changes no package." in out.getvalue()


def test_the_document_is_what_its_schema_says() -> None:
    out = io.StringIO()
    assert (
        write_advice(Answering("hgx-h100", KERNEL), "apt-get dist-upgrade", out, OutputOptions(json=True))
        == 2
    )
    document = valid("upgrade", out.getvalue())
    assert document["packages"][0]["concerns"] == "kernel"
    findings = {finding["id"] for finding in document["forecast"]["findings"]}
    assert "upgrade-kernel-without-headers" in findings


@pytest.mark.parametrize(
    "answer", [Unknown(Reason.NOT_THERE, "apt-get", "not installed"), "E: Could not read the package lists\n"]
)
def test_without_an_answer_of_the_package_manager_there_is_no_forecast(answer: str | Unknown) -> None:
    with pytest.raises(UsageError, match=r"not installed|Could not read"):
        write_advice(Answering("hgx-h100", answer), "apt-get upgrade", io.StringIO(), OutputOptions())


def test_the_output_of_a_simulation_can_come_from_stdin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(CURL))
    assert main(["forecast", "--demo", "hgx-h100", "--upgrade", "-"]) == 0
    assert "1 package would change" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    assert main(["forecast", "--demo", "hgx-h100", "--upgrade", "-"]) == 3
    assert "stdin names no package" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--upgrade", "reboot"), "only upgrade, install and remove"),
        (("--upgrade", "apt-get upgrade", "--kernel", "6.8"), "takes no --kernel"),
    ],
    ids=["another command", "a kernel"],
)
def test_wrong_usage_names_what_is_wrong(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forecast", "--demo", "hgx-h100", *arguments]) == 3
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("node", "command", "kernel"),
    [
        ("hgx-h100", "apt-get dist-upgrade", "6.8.0-90-generic"),
        ("pcie-l40s", "dnf upgrade", "5.14.0-457.13.1.el9_4.x86_64"),
        ("slingshot", "zypper dup", "5.14.21-150530.55.83-64kb"),
    ],
)
def test_a_simulated_node_answers_for_its_package_manager(
    node: str, command: str, kernel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["forecast", "--demo", node, "--upgrade", command])
    shown = capsys.readouterr().out
    assert f"After the upgrade and a reboot into {kernel}" in shown
    rows = [line for line in shown.splitlines() if "gpu-without-driver" in line]
    assert all(line.endswith("GPUs") for line in rows)  # by their names, as check has them
