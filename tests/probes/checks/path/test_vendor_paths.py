"""EFA and Slingshot: what is wrong is found, and nothing of OFED or nvidia_peermem is offered."""

import json
from dataclasses import asdict, replace

import pytest

from probes.base.evidence import Severity
from probes.base.plan import Plan
from probes.base.unknown import Unknown
from probes.facts.gpudirect import GdrPath
from probes.plans.load_modules import load_modules, load_peermem
from probes.queries.finding import Finding, Status
from probes.setup.situation import choose_path
from probes.snapshot.verdict import State
from tests.support.changed_facts import said
from tests.support.doctor import examination_of, findings_on, found_on

EFA, CXI = "aws-p5", "slingshot"
FAULTY = (
    *(f"{EFA}+{name}" for name in ("efa-peermem-unusable", "efa-peermem-unusable-refused", "efa-not-loaded")),
    *(f"{CXI}+{name}" for name in ("cxi-without-gpu-support", "cxi-ss1-not-loaded", "cxi-user-not-loaded")),
)
FOREIGN = ("ofed", "nvidia_peermem", "nvidia-peermem", "nccl_net=ib", "mlx5", "mlxconfig")


def found(node: str) -> list[Finding]:
    return [finding for finding in findings_on(node).values() if finding.status is Status.FOUND]


def words(plan: Plan | None) -> str:
    return "" if plan is None else json.dumps(asdict(plan)).lower()


@pytest.mark.slow
@pytest.mark.parametrize("node", FAULTY)
def test_no_fix_names_what_plays_no_part(node: str) -> None:
    assert examination_of(node).usability.state is State.BROKEN
    for finding in found(node):
        assert not [word for word in FOREIGN if word in words(finding.fix)], finding.id


@pytest.mark.slow
def test_the_root_cause_of_a_broken_node_is_its_own_driver() -> None:
    for node in FAULTY:
        roots = {
            finding.id
            for finding in found(node)
            if not finding.part_of and finding.severity is Severity.CRITICAL
        }
        assert len(roots) == 1, (node, roots)
        assert roots.pop().startswith(("efa-", "cxi-"))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["efa-peermem-unusable-spare", "efa-peermem-symbol-mismatch"])
def test_efas_own_module_is_a_note_where_nccl_can_use_dmabuf(fault: str) -> None:
    """On EFA of generations 1 to 3, only aws-ofi-nccl 1.19.2 and newer offers DMA-BUF to NCCL."""
    (finding,) = found(f"{EFA}+{fault}")
    assert finding.severity is Severity.WARNING
    assert "aws-ofi-nccl before 1.19.2" in finding.impact
    node = examination_of(f"{EFA}+{fault}")
    pci = node.node.pci
    assert not isinstance(pci, Unknown)
    functions = {
        bdf: replace(function, device_id=0xEFA3) if function.device_id == 0xEFA1 else function
        for bdf, function in pci.functions.items()
    }
    newer = replace(node, node=replace(node.node, pci=replace(pci, functions=functions)))
    finding = said(finding.id, newer)
    assert finding.severity is Severity.NOTE
    assert "aws-ofi-nccl" not in finding.impact


@pytest.mark.slow
def test_a_job_without_the_plugin_is_told_to_install_it_and_not_to_force_ib() -> None:
    node = f"{EFA}+nccl-net-plugin-absent"
    finding = findings_on(node)["nccl-net-plugin-absent"]
    assert "aws-ofi-nccl" in words(finding.fix)
    assert findings_on(node)["job-log-tcp"].part_of == finding.id
    assert all("nccl_net=ib" not in words(finding.fix) for finding in found(node))


@pytest.mark.slow
def test_slingshot_has_one_path_and_dmabuf_by_verbs_is_none() -> None:
    choice = choose_path(examination_of(CXI))
    assert choice.recommended is GdrPath.CXI
    assert [state.path for state in choice.paths] == [GdrPath.CXI]
    assert not found_on(CXI)


def test_slingshot_without_its_driver_is_not_told_to_load_verbs() -> None:
    finding = findings_on(f"{CXI}+cxi-ss1-not-loaded")["no-gdr-path"]
    assert finding.status is Status.FOUND
    assert "uverbs" not in json.dumps(asdict(finding), default=str)


@pytest.mark.slow
@pytest.mark.parametrize("node", [EFA, CXI])
def test_no_action_loads_nvidia_peermem(node: str) -> None:
    examination = examination_of(node)
    assert isinstance(load_peermem(examination), str)
    plan = load_modules(examination)
    assert isinstance(plan, str) or "nvidia_peermem" not in words(plan)
