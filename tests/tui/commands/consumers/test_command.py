"""`gdrtop check` with --for, --severity-map and --quiet, as a user types them."""

import json

import pytest

from tui.cli import main
from tui.commands.check import CONSUMERS


def run(capsys: pytest.CaptureFixture[str], name: str, *arguments: str) -> tuple[int, str]:
    status = main(["--demo", name, "check", *arguments])
    return status, capsys.readouterr().out


@pytest.mark.slow
def test_the_same_node_for_each_consumer(capsys: pytest.CaptureFixture[str]) -> None:
    printed = {name: run(capsys, "hgx-h100+no-gdr-path", "--for", name) for name in CONSUMERS}
    statuses = {name: status for name, (status, _) in printed.items()}
    assert statuses == {"nagios": 2, "npd": 1, "nhc": 1, "slurm": 1}
    assert all(text.endswith("\n") for _, text in printed.values())
    assert printed["slurm"][1].startswith("gdrtop: SIMULATED hgx-h100+no-gdr-path: peermem-not-loaded")


@pytest.mark.slow
def test_a_healthy_node_is_silent_for_nhc(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "hgx-h100", "--for", "nhc") == (0, "")
    assert run(capsys, "hgx-h100+acs-on", "--for", "nhc", "--severity-map", "warning=isolate")[0] == 1


def test_automation_reads_the_action_in_the_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = run(capsys, "hgx-h100+port-down", "--severity-map")
    assert (status, text.splitlines()) == (1, ["watch", "watch ib-port-not-active mlx5_1"])


def test_a_jobs_own_settings_isolate_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "dgx-a100+nccl-ib-disabled", "--severity-map") == (
        0,
        "none\nnone dmabuf-needs-open-module\n",
    )


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--json",), ("--for", "nagios"), ("--one-line",)])
def test_quiet_prints_nothing_and_keeps_the_exit_status(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "hgx-h100+port-down", "-q", *arguments) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--for", "nagios", "--json"), "--for and --json exclude each other"),
        (("--one-line", "--json"), "--one-line and --json exclude each other"),
        (
            ("--for", "npd", "--severity-map", "critical=watch"),
            "--for and --severity-map exclude each other; only nhc and slurm use the map",
        ),
        (("--for", "slurm", "--all"), "--for takes no ID and no --all"),
        (("--one-line", "acs-redirect-enabled"), "--one-line takes no ID and no --all"),
        (("--for", "zabbix"), "invalid choice: 'zabbix'"),
        (("--severity-map", "critical=drain"), "the actions are isolate, reset, watch, none"),
    ],
)
def test_options_that_exclude_each_other(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--demo", "hgx-h100", "check", *arguments]) == 3
    captured = capsys.readouterr()
    assert words in captured.err
    if "nagios" in arguments:  # NRPE passes on stdout alone
        assert captured.out.startswith("GDRTOP UNKNOWN - ")
    else:
        assert captured.out == ""


def test_a_profile_answers_each_criterion(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = run(capsys, "hgx-h100+acs-on", "--profile", "clustermax")
    assert status == 2
    assert "✗ pcie-acs" in text
    assert "? arm-smmu-cmdqv" in text
    assert "SIMULATED" in text


def test_a_profile_that_is_no_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--demo", "hgx-h100", "check", "--profile", "clustermx"]) == 3
    assert "gdrtop brings gdrtop, clustermax, nvidia-gpuop" in capsys.readouterr().err


def test_a_fleet_gets_the_node_in_one_line_whatever_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = run(capsys, "hgx-h100+acs-on", "--for", "fleet")
    assert status == 0
    assert text.count("\n") == 1
    document = json.loads(text)
    assert (document["schema"], document["source"]) == ("gdrtop/fleet-node/1", "simulated")
    assert [node["verdict"]["state"] for node in document["nodes"]] == ["DEGRADED"]
