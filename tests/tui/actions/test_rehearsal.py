"""A rehearsal shows what a node really becomes: each action on a twin, and then on the node itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from probes.base.plan import FileChange, Plan, Step
from probes.base.unknown import Unknown
from probes.checks.judgment import conclude
from probes.checks.registry import findings
from probes.live.job_examination import examine_with_jobs
from probes.plans.catalogue import Offer, offers
from probes.queries.finding import Finding, Status
from probes.setup.twin.build import make_twin
from probes.simulation.host import SimulatedHost
from probes.simulation.node.modules.loading import remove_modules
from probes.snapshot.condition import CONGESTED, Condition
from probes.snapshot.examination import examine
from probes.snapshot.verdict import State
from tests.support.pilot import SteppedClock
from tests.support.simulated_tree import write_tree
from tests.support.tiers import usual
from tui.actions.audit_log import Actor, Audit, MemoryLog
from tui.actions.events import RunEnded, RunOutcome
from tui.actions.manual_steps import runnable
from tui.actions.rehearsal import Rehearsal, SimulatedCommands, rehearse
from tui.actions.runner import Runner
from tui.cli import main

# Nodes and the one action that matters most there.
ACTIONS = {
    "hgx-h100": "unload-peermem",
    "dgx-a100": "restart-fabric-manager",
    "hgx-h100+peermem-not-loaded": "load-peermem",
    "hgx-h100+no-gdr-path": "load-modules",
    "hgx-h100+peermem-not-persistent": "persist-modules",
    "hgx-h100+acs-on": "acs-redirect-off",
    "hgx-h100+port-disabled": "raise-ports",
    "hgx-h100+persistence-off": "persistence-on",
    "hgx-h100+nv-peer-mem-conflict": "replace-nv-peer-mem",
}
# Whether the kernel has memory_peers shows only while nvidia_peermem is loaded.
ONLY_WHEN_LOADED = {"memory-peers-missing-old-nccl"}
# Every action and every fix of these nodes.
NODES = (
    *("hgx-h100+secure-boot-key-rejected", "hgx-h100+peermem-not-persistent", "hgx-h100+acs-on"),
    *("hgx-h100", "dgx-a100", "pcie-l40s", "gb200", "cloud-vm", "pcie-l40s+nvidia-not-loaded"),
    *("pcie-l40s+mlx5-core-not-loaded", "hgx-h100+memlock-login", "dgx-a100+peermem-not-loaded"),
    *("hgx-h100+peermem-built-without-symbols", "hgx-h100+module-blacklisted", "hgx-h100+port-down"),
    *(
        "hgx-h100+pcie-devctl-read-request",
        "hgx-h100+driver-library-mismatch",
        "hgx-h100+fabric-manager-down",
    ),
)


@dataclass(frozen=True)
class Played:
    """One action, rehearsed on one node and run on another of the same description."""

    rehearsal: Rehearsal
    ended: RunEnded
    findings: tuple[Finding, ...]
    state: State
    rehearsed_state: State


def node(name: str) -> SimulatedHost:
    return SimulatedHost(name, clock=SteppedClock())


def run(host: SimulatedHost, action: str, plan: Plan) -> RunEnded:
    audit = Audit(MemoryLog(), Actor("node", "", "", 0), host.wall_clock)
    commands = SimulatedCommands(host, wait=lambda seconds: None)
    return Runner(host, commands, audit, lambda event: None).run(action, plan)


def offers_of(name: str) -> Iterable[Offer]:
    examination = examine_with_jobs(node(name))
    for offer in offers(examination, findings(examination)):
        if offer.plan is not None and runnable(offer.plan):
            yield offer


def outcomes(reported: Iterable[Finding]) -> dict[str, tuple[str, str]]:
    return {
        finding.id: (finding.status.value, finding.severity.value if finding.status is Status.FOUND else "")
        for finding in reported
    }


def play(name: str, action: str, plan: Plan) -> Played:
    twin_of, real = node(name), node(name)
    before = examine_with_jobs(twin_of)
    rehearsal = rehearse(twin_of, before, action, plan)
    # The node itself is as before.
    assert outcomes(findings(examine_with_jobs(twin_of))) == outcomes(findings(before))
    earlier = examine_with_jobs(real)
    ended = run(real, action, plan)
    after = examine_with_jobs(real, before=earlier)
    found = findings(after)
    return Played(
        rehearsal, ended, found, conclude(after.usability, found).state, rehearsal.judgment.verdict.state
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(ACTIONS, ["hgx-h100+peermem-not-loaded"]))
def test_a_rehearsed_action_shows_what_the_node_becomes(name: str) -> None:
    action = ACTIONS[name]
    offer = next(offer for offer in offers_of(name) if offer.id == action)
    assert offer.plan is not None
    played = play(name, action, offer.plan)
    assert played.rehearsal.ended.outcome is played.ended.outcome
    said, real = outcomes(played.rehearsal.judgment.findings), outcomes(played.findings)
    assert {name for name in real if said[name] != real[name]} <= ONLY_WHEN_LOADED
    assert played.rehearsed_state is played.state
    assert not played.rehearsal.not_rehearsed


@pytest.mark.slow
@pytest.mark.parametrize("name", NODES)
def test_what_a_rehearsal_says_is_so_or_is_unknown(name: str) -> None:
    """A module that was never loaded here brings facts that no twin can know; it then says so."""
    for offer in offers_of(name):
        assert offer.plan is not None
        played = play(name, offer.id, offer.plan)
        real = outcomes(played.findings)
        said = {
            key: outcome
            for key, outcome in outcomes(played.rehearsal.judgment.findings).items()
            if outcome[0] != Status.UNKNOWN.value
        }
        assert said == {key: real[key] for key in said}, offer.id
        assert played.rehearsed_state in (played.state, State.UNKNOWN), offer.id
        if not played.rehearsal.not_rehearsed:
            assert played.rehearsal.ended.outcome is played.ended.outcome, offer.id


def test_what_a_new_module_brings_is_unknown_and_not_made_up() -> None:
    host = node("pcie-l40s+nvidia-not-loaded")
    twin = make_twin(host, examine(host))
    assert twin.perform(("modprobe", "nvidia")).exit_status == 0
    assert str(twin.read("/proc/modules")).startswith("nvidia ")
    for answer in (
        twin.nvml(),
        twin.read("/proc/driver/nvidia/version"),
        twin.names("/proc/driver/nvidia/gpus"),
    ):
        assert isinstance(answer, Unknown)
        assert answer.detail == "only known once nvidia is loaded"
    assert "nvidia 65536 0 - Live" in str(twin.read("/proc/modules"))
    assert "nvidia" not in host.tree.live_modules


def test_a_module_that_comes_back_brings_what_it_had() -> None:
    host = node("hgx-h100")
    twin = make_twin(host, examine(host))
    remove_modules(twin.tree, "mlx5_ib")
    gone = twin.names("/sys/class/infiniband")
    assert isinstance(gone, Unknown)
    assert twin.perform(("modprobe", "mlx5_ib")).exit_status == 0
    assert twin.names("/sys/class/infiniband") == host.names("/sys/class/infiniband")
    port = "/sys/class/infiniband/mlx5_0/ports/1/state"
    assert twin.read(port) == host.read(port) == "4: ACTIVE"


@pytest.mark.slow
def test_what_only_watching_shows_is_not_said_to_be_fixed() -> None:
    host = SimulatedHost("hgx-h100", clock=SteppedClock())
    examination = examine_with_jobs(host)
    assert not isinstance(examination.watched, Unknown)
    congested = Condition(CONGESTED, "mlx5_0", "the network is congested", 0.0, devices=("mlx5_0",))
    watched = replace(examination.watched, seconds=120.0, conditions=(congested,))
    (offer,) = (offer for offer in offers_of("hgx-h100") if offer.id == "unload-peermem")
    assert offer.plan is not None
    after = rehearse(host, replace(examination, watched=watched), "unload-peermem", offer.plan).judgment
    assert CONGESTED in {finding.id for finding in after.found}


def test_reference_counts_follow_the_modules() -> None:
    host = node("hgx-h100+peermem-not-loaded")
    twin = make_twin(host, examine(host))
    before = int(str(host.read("/sys/module/nvidia/refcnt")))
    twin.perform(("modprobe", "nvidia_peermem"))
    assert twin.read("/sys/module/nvidia/refcnt") == str(before + 1)
    assert host.read("/sys/module/nvidia/refcnt") == str(before)
    assert twin.perform(("rmmod", "nvidia")).exit_status == 1  # in use, as on the node
    twin.perform(("rmmod", "nvidia_peermem"))
    assert twin.read("/sys/module/nvidia/refcnt") == str(before)


def test_files_are_written_on_the_twin_only() -> None:
    host = node("hgx-h100")
    plan = Plan("Write", (Step("a file", file=FileChange("/etc/modprobe.d/x.conf", "blacklist mlx5_ib\n")),))
    twin = make_twin(host, examine(host))
    audit = Audit(MemoryLog(), Actor("twin", "", "", 0), host.wall_clock)
    ended = Runner(twin, SimulatedCommands(twin, lambda s: None), audit, lambda event: None).run("x", plan)
    assert ended.outcome is RunOutcome.DONE
    assert twin.read("/etc/modprobe.d/x.conf") == "blacklist mlx5_ib"
    assert "x.conf" in str(twin.names("/etc/modprobe.d"))
    assert isinstance(host.read("/etc/modprobe.d/x.conf"), Unknown)
    twin.perform(("rm", "--", "/etc/modprobe.d/x.conf"))
    assert isinstance(twin.read("/etc/modprobe.d/x.conf"), Unknown)
    assert "x.conf" not in str(twin.names("/etc/modprobe.d"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("dkms", "autoinstall"), "gdrtop cannot simulate this command"),
        (("reboot",), "gdrtop cannot simulate this command"),
        (("systemctl", "reboot"), "gdrtop forecast shows what a reboot brings"),
        (("systemctl", "restart", "slurmd"), "the effect of this service is unknown"),
        (("nvidia-smi", "-mig", "1"), "only persistence mode can be rehearsed"),
    ],
)
def test_a_command_that_the_twin_cannot_play_is_named(argv: tuple[str, ...], why: str) -> None:
    host = node("hgx-h100")
    twin = make_twin(host, examine(host))
    result = twin.perform(argv)
    assert result.exit_status == 0
    assert result.lines == (f"not rehearsed: {why}",)
    assert twin.not_rehearsed == [f"{' '.join(argv)} ({why})"]


def test_a_module_that_the_kernel_refused_before_is_not_claimed_to_load() -> None:
    host = node("dgx-a100+peermem-symbol-version-mismatch")
    twin = make_twin(host, examine(host))
    twin.perform(("modprobe", "nvidia_peermem"))
    assert "nvidia_peermem" not in twin.tree.live_modules
    assert "the kernel refused it before" in twin.not_rehearsed[0]


def test_the_command_shows_now_and_then_and_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["do", "--demo", "hgx-h100+acs-on", "acs-redirect-off", "--rehearse"]) == 0
    out = capsys.readouterr().out
    assert "Clear ACS redirects between GPUs and NICs  on a simulated copy of this node" in out
    assert "EXPECTED AFTERWARDS (rehearsed on a copy; this node was not changed)" in out
    assert "now     ▲ DEGRADED" in out
    assert "then    ● ACTIVE" in out
    assert "fixed   ✓ acs-redirect-enabled" in out
    assert main(["do", "--demo", "hgx-h100", "--rehearse"]) == 3


@pytest.mark.slow
def test_a_tree_of_files_cannot_be_rehearsed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(node("hgx-h100+peermem-not-loaded"), tmp_path)
    arguments = ["do", "--root", str(tmp_path), "load-peermem", "--rehearse"]
    assert main(arguments) == 2
    assert "A rehearsal needs the running node" in capsys.readouterr().out
