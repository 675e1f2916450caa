"""Plans carried out on simulated nodes: what they promise comes true, and taking them back leads back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from probes.base.plan import Plan, Step
from probes.plans.load_modules import OWN_FILE
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from tests.support.plans import answer, commands


def node(name: str) -> SimulatedHost:
    return SimulatedHost(name, clock=lambda: 1000.0)


def offered(host: SimulatedHost, action: str) -> Plan:
    told = answer(action, examine(host))
    assert isinstance(told, Plan), told
    return told


def carry_out(host: SimulatedHost, steps: Sequence[Step]) -> None:
    """Every step that is one; none may fail."""
    for step in steps:
        if step.file is not None and step.file.text is not None:
            done = host.perform(("tee", step.file.path), step.file.text)
        elif step.file is not None:
            done = host.perform(("rm", step.file.path))
        elif step.argv:
            done = host.perform(step.argv)
        else:
            continue
        assert done.exit_status == 0, (step.argv, done.lines)


def take_back(host: SimulatedHost, steps: Sequence[Step]) -> None:
    for step in reversed(steps):
        if step.undo:
            done = host.perform(step.undo)
            assert done.exit_status == 0, (step.undo, done.lines)


DONE = [
    ("load-modules", "pcie-l40s+ib-core-not-loaded", "all needed modules are loaded"),
    ("load-modules", "pcie-l40s+mlx5-core-not-loaded", "all needed modules are loaded"),
    ("load-modules", "pcie-l40s+nvidia-not-loaded", "all needed modules are loaded"),
    ("load-modules", "hgx-h100+peermem-not-loaded", "all needed modules are loaded"),
    ("load-peermem", "hgx-h100+peermem-not-loaded", "nvidia_peermem is already loaded"),
    ("replace-nv-peer-mem", "dgx-a100+nv-peer-mem-conflict", "nv_peer_mem is not loaded"),
    ("acs-redirect-off", "hgx-h100+acs-on", "none of the 16 switch ports"),
    ("mrrs", "hgx-h100+pcie-devctl-read-request", "already 4096 bytes or more on all 10 NICs"),
    ("persistence-on", "hgx-h100+persistence-off-daemon-runs", "persistence mode is on for all 8 GPUs"),
    ("raise-ports", "hgx-h100+port-disabled", "none of the 10 ports is disabled"),
    ("raise-ports", "hgx-h100+netdev-down", "none of the 10 ports is disabled"),
    ("persist-modules", "hgx-h100", "all modules that this node needs load at boot"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("action", "name", "told"), DONE, ids=[f"{case[0]} {case[1]}" for case in DONE])
def test_a_completed_action_is_not_offered_again(action: str, name: str, told: str) -> None:
    host = node(name)
    carry_out(host, offered(host, action).steps)
    afterwards = answer(action, examine(host))
    assert isinstance(afterwards, str), commands(afterwards)
    assert afterwards.startswith(told)


TAKEN_BACK = [case for case in DONE if case[0] not in ("replace-nv-peer-mem", "persist-modules")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "name"), [case[:2] for case in TAKEN_BACK], ids=[f"{case[0]} {case[1]}" for case in TAKEN_BACK]
)
def test_an_undone_action_is_offered_again(action: str, name: str) -> None:
    host = node(name)
    plan = offered(host, action)
    carry_out(host, plan.steps)
    take_back(host, plan.steps)
    again = offered(host, action)
    assert set(commands(plan)) >= set(commands(again))


def test_the_modules_load_file_is_written_and_removed() -> None:
    host = node("hgx-h100")
    carry_out(host, offered(host, "persist-modules").steps)
    assert "nvidia_uvm" in str(host.read(OWN_FILE))
    carry_out(host, offered(host, "unpersist-modules").steps)
    assert isinstance(answer("unpersist-modules", examine(host)), str)
    assert isinstance(answer("persist-modules", examine(host)), Plan)


def test_a_used_module_is_not_unloaded() -> None:
    """Jobs hold nvidia_peermem here: the first step fails, and nothing is changed."""
    host = node("dgx-a100")
    for action in ("unload-peermem", "reload-peermem"):
        plan = offered(host, action)
        assert "refcnt" in plan.disturbs
        assert host.perform(plan.steps[0].argv).exit_status != 0
    assert answer("load-peermem", examine(host)) == "nvidia_peermem is already loaded"
