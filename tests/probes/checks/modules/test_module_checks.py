"""All checks of kernel modules and of the path to GPU memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from probes.base.unknown import Unknown
from probes.checks.registry import CHECKS, findings
from probes.facts.kernel.modules import ModuleFacts
from probes.queries.finding import Status
from probes.simulation.faults.catalogue import FAULTS, NoSuchFault
from probes.simulation.node.model.names import SIMULATED_NAMES
from probes.snapshot.condition import BELOW_LIMIT
from tests.support.doctor import examination_of, findings_on
from tests.support.module_nodes import HGX, NEEDS_ROOT, NOT_THERE, says
from tests.support.tiers import USUAL_FAULTS, usual

# Without those about bandwidth tests, which need results and no facts.
OURS = [check.id for check in CHECKS if check.area in ("modules", "path") and check.id != BELOW_LIMIT]
FAULTED = {found: fault for fault in FAULTS.values() for found in fault.finds}
# For tests that examine the node that has the finding.
FAULTED_OURS = usual(OURS, {found for found in OURS if FAULTED[found].name in USUAL_FAULTS})


@pytest.mark.parametrize("name", OURS)
def test_unknown_facts_give_no_findings(name: str) -> None:
    whole = examination_of(HGX)
    parts = ("gpudirect", "modules", "gpus", "rdma", "pci", "kernel", "data_direct")
    others = ("kernel_log", "processes", "services", "dkms", "tools", "libraries", "module_files")
    blind = replace(
        whole,
        node=replace(whole.node, **dict.fromkeys(parts, NEEDS_ROOT)),
        **dict.fromkeys(others, NEEDS_ROOT),
    )
    finding = says(blind, name)
    assert finding.status is Status.UNKNOWN
    assert "needs root" in finding.cause or "could not be read" in finding.cause


@pytest.mark.parametrize("name", OURS)
def test_each_check_passes_on_a_healthy_node_with_evidence(name: str) -> None:
    finding = findings_on(HGX)[name]
    if name == "peermem-reference-leak":  # only root can pass it while jobs run
        assert finding.status in (Status.PASSED, Status.UNKNOWN)
        return
    assert finding.status is Status.PASSED
    assert all(line.source and line.value for line in finding.evidence)
    assert finding.evidence


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTED_OURS)
def test_each_finding_has_a_reference_and_limited_evidence(name: str) -> None:
    fault = FAULTED[name]
    finding = findings_on(f"{fault.on}+{fault.name}")[name]
    assert finding.reference
    assert len(finding.evidence) <= 10
    assert all(len(line.value) <= 400 for line in finding.evidence)


@pytest.mark.parametrize("name", FAULTED_OURS)
def test_the_steps_of_a_fix_use_no_shell(name: str) -> None:
    fault = FAULTED[name]
    fix = findings_on(f"{fault.on}+{fault.name}")[name].fix
    if fix is None:
        return
    assert fix.steps
    for step in fix.steps:
        assert step.why
        assert not {"&&", "|", ";", ">", "sh", "bash", "sudo"} & {*step.argv, *step.undo}
        assert "systemctl reboot" not in " ".join(step.argv) or (fix.needs_reboot and fix.disturbs)


def test_a_node_without_gpu_or_nic_needs_no_module() -> None:
    """Such as a small virtual machine whose kernel has no modules at all."""
    node = examination_of(HGX)
    pci = node.node.pci
    assert not isinstance(pci, Unknown)
    bare = replace(node.node, pci=replace(pci, functions={}), modules=NOT_THERE, gpudirect=NOT_THERE)
    empty = replace(node, node=bare, topology=replace(node.topology, gpus=(), nics=()))
    found = findings(empty, only=OURS)
    assert [finding.id for finding in found if finding.status is not Status.PASSED] == []


@pytest.mark.slow
@given(st.lists(st.sampled_from(sorted(FAULTS)), max_size=8, unique=True), st.sampled_from(SIMULATED_NAMES))
@settings(max_examples=30)
def test_no_combination_of_faults_crashes_a_check(faults: list[str], node: str) -> None:
    try:
        found = findings_on(f"{node}+{','.join(faults)}")
    except NoSuchFault:  # one of them needs what this node has not
        reject()
    for finding in found.values():
        assert "a bug in gdrtop" not in finding.cause, (finding.id, finding.evidence)


def test_dma_buf_is_no_module() -> None:
    """It is part of the kernel; tests/probes/plans/test_catalogue.py sees that no plan loads it."""
    modules = examination_of(HGX).node.modules
    assert isinstance(modules, ModuleFacts)
    assert "dma_buf" not in modules.modules
