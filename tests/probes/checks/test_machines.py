"""Findings on trees of real machines, and why they are correct."""

import tarfile
from pathlib import Path

import pytest

from probes.base.evidence import Severity
from probes.checks.judgment import exit_status, judge
from probes.host.machine.local import LocalHost
from probes.queries.finding import Finding
from probes.snapshot.examination import examine
from probes.snapshot.verdict import State
from tests.support.hwloc_trees import TREES, USUAL_TREES
from tests.support.machines import machine_file
from tests.support.tiers import usual
from tests.support.trees import tree_from_lspci


def examined(host: LocalHost) -> tuple[State, int, dict[str, Finding]]:
    """Return verdict, exit status, and the found findings by id."""
    examination = examine(host)
    judgment = judge(examination)
    found, verdict = {finding.id: finding for finding in judgment.found}, judgment.verdict
    return verdict.state, exit_status(verdict), found


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(TREES, USUAL_TREES))
def test_trees_of_hwloc(name: str, tmp_path: Path) -> None:
    """None of these has an NVIDIA GPU with a NIC; facts that such a tree omits are no faults."""
    with tarfile.open(machine_file(f"hwloc_sysfs/{name}.tar.bz2")) as archive:
        archive.extractall(tmp_path)
    (root,) = tmp_path.iterdir()
    state, status, found = examined(LocalHost(str(root)))
    assert state in (State.NOT_APPLICABLE, State.UNKNOWN)
    assert status == 3
    assert set(found) == set()


@pytest.mark.slow
def test_an_h100_node_rebuilt_from_its_lspci(tmp_path: Path) -> None:
    text = machine_file("lspci/h100-8gpu-supermicro-lspci-vvv.txt").read_text(errors="replace")
    tree_from_lspci(text, tmp_path)
    _, _, found = examined(LocalHost(str(tmp_path)))
    # The listing has drivers but no RDMA devices, so the rebuilt sysfs has none.
    assert {finding.id for finding in found.values() if finding.severity is Severity.CRITICAL} <= {
        "nic-without-rdma-device"
    }
    assert {finding.id for finding in found.values() if finding.severity is Severity.WARNING} == set()


@pytest.mark.parametrize("name", ["gb200", "h100", "l40s"])
def test_trees_rendered_for_a_pretended_nvml(name: str, tmp_path: Path) -> None:
    """No GPU drivers, no modules, and RDMA devices without a PCI function: none of these was recorded."""
    with tarfile.open(machine_file(f"synth_sysfs/nvml-mock-{name}-rendered-sysfs.tar.gz")) as archive:
        archive.extractall(tmp_path)
    state, status, found = examined(LocalHost(str(tmp_path / name)))
    assert state is State.NOT_APPLICABLE
    assert status == 3
    assert {finding.id for finding in found.values() if finding.severity is not Severity.NOTE} == set()
