"""Every fault of a simulated node is found, and a healthy node has no findings."""

import ast
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.base.data_files import parse_toml
from probes.base.evidence import Severity
from probes.checks.judgment import judge
from probes.checks.registry import CHECKS
from probes.facts.pci.nic_families import FAMILIES
from probes.live.job_examination import examine_with_jobs
from probes.queries.finding import Scope, Status
from probes.queries.pcie_paths import DeviceNames
from probes.simulation.faults import nic
from probes.simulation.faults.catalogue import AREAS, FAULTS, HIDES
from probes.simulation.faults.fault import Fault
from probes.simulation.faults.fault import __file__ as fault_file
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.names import SIMULATED_NAMES
from tests.support.contradictions import contradictions
from tests.support.doctor import examination_of, findings_on, found_on, place_of_check, place_of_fault
from tests.support.tiers import USUAL_FAULTS, usual

# Findings on healthy nodes, and why they are correct.
ARGUED: dict[str, set[str]] = {name: set() for name in SIMULATED_NAMES}
# Two of its GPUs are on a socket without a NIC, while the others have one below their switch.
ARGUED["pcie-l40s"] |= {"gpu-nic-cross-socket", "gpu-not-served", "job-log-staged", "job-staged"}


@pytest.mark.parametrize("name", SIMULATED_NAMES)
def test_a_healthy_node_has_no_findings(name: str) -> None:
    found = {finding.id: finding for finding in findings_on(name).values() if finding.status is Status.FOUND}
    loud = {name for name, finding in found.items() if finding.severity is not Severity.NOTE}
    assert loud == ARGUED[name]


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(name: str) -> None:
    """Every fault, not only the usual ones: a new or changed fault shows its mistakes in `make test`."""
    fault = FAULTS[name]
    # Not findings_on(): its cache would keep hundreds of examinations.
    examination = examine_with_jobs(SimulatedHost(f"{fault.on}+{name}", clock=lambda: 1000.0))
    judgment = judge(examination)
    on_node = {finding.id: finding for finding in judgment.findings}
    here = place_of_fault(name)
    for id_ in sorted(fault.finds):
        assert id_ in on_node, f"{here}: the fault {name} names {id_}, and {place_of_check(id_)}"
        status = on_node[id_].status
        assert status is Status.FOUND, (
            f"{place_of_check(id_)}: the check {id_} is {status.value} on {fault.on}+{name}; "
            f"correct the check, or the fault in {here}"
        )
    already = fault.finds & found_on(fault.on)
    assert not already, f"{here}: {fault.on} has {sorted(already)} even without the fault; see on="
    for finding in judgment.findings:
        failed = finding.cause.endswith("because of a bug in gdrtop")
        assert not failed, f"{place_of_check(finding.id)}: {finding.id} raised {finding.evidence[0].value}"
    wrong = contradictions(judgment.verdict, judgment.findings, examination.usability)
    assert not wrong, f"probes/checks/judgment.py: the verdict on {fault.on}+{name} says {wrong}"


def test_no_fault_is_lost() -> None:
    """A file, a fault or a function in probes/simulation/faults is of no use until FAULTS has it."""
    folder = Path(fault_file).parent
    listed = {Path(str(area.__file__)).name for area in AREAS} | {"__init__.py", "fault.py", "catalogue.py"}
    lost = sorted({path.name for path in folder.glob("*.py")} - listed)
    assert not lost, f"add {lost} to AREAS in probes/simulation/faults/catalogue.py"
    names = [fault.name for area in AREAS for fault in area.FAULTS]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"two faults of one name: {sorted(twice)}"
    for area in AREAS:
        values = [value for value in vars(area).values() if not isinstance(value, Collection)]
        values += [
            value for given in vars(area).values() if isinstance(given, tuple | list) for value in given
        ]
        lost = sorted({value.name for value in values if isinstance(value, Fault)} - set(names))
        assert not lost, f"add {lost} to FAULTS in {area.__file__}"
    trees = {path: ast.parse(path.read_text()) for path in folder.glob("*.py")}
    used = {
        getattr(node, "id", getattr(node, "name", ""))
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.alias)
    }
    rows = [row for path in folder.glob("*.toml") for row in parse_toml(path.read_text()).values()]
    for row in (row for row in rows if isinstance(row, dict)):
        for names in (row.get("does", ""), row.get("node", "")):
            used |= {f"_{name}" for name in (names.split() if isinstance(names, str) else names[:1])}
    for path, tree in trees.items():
        functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
        lost = [node.name for node in functions if node.name.startswith("_") and node.name not in used]
        assert not lost, f"no fault uses {lost} of {path}: name it in a TOML file there"


def test_names_in_a_fault_exist() -> None:
    for name, fault in FAULTS.items():
        missing = (fault.finds | fault.shows) - {check.id for check in CHECKS}
        assert not missing, f"{place_of_fault(name)}: probes/checks has no check {sorted(missing)}"
        missing = fault.excludes - set(FAULTS)
        assert not missing, f"{place_of_fault(name)}: excludes {sorted(missing)}, which are no faults"
        assert fault.on in SIMULATED_NAMES, f"{place_of_fault(name)}: there is no node {fault.on}"
    missing = {name for hidden in HIDES.values() for name in hidden} - set(FAULTS)
    assert not missing, f"probes/simulation/faults/hides.toml: there is no fault {sorted(missing)}"


@pytest.mark.parametrize("name", usual(FAULTS, USUAL_FAULTS))
def test_a_finding_has_cause_and_evidence(name: str) -> None:
    fault = FAULTS[name]
    for found in fault.finds:
        finding = findings_on(f"{fault.on}+{name}")[found]
        assert finding.cause
        assert finding.evidence
        assert all(line.source and line.value for line in finding.evidence)


@pytest.mark.parametrize("name", usual(FAULTS, USUAL_FAULTS))
def test_a_root_is_at_least_as_severe_as_its_parts(name: str) -> None:
    found = {finding.id: finding for finding in findings_on(f"{FAULTS[name].on}+{name}").values()}
    order = list(Severity)
    for finding in found.values():
        if finding.status is Status.FOUND and finding.part_of:
            root = found[finding.part_of]
            assert not root.part_of
            assert order.index(root.severity) <= order.index(finding.severity)


# Where GPUDirect RDMA cannot work by design, other faults are not reported; from a pod, many are not visible.
ALONE = {"confidential-computing-on", "in-pod", "dev-infiniband-refused", "container-shm-small"}
COMBINED = [fault for fault in FAULTS.values() if fault.on == "hgx-h100" and fault.name not in ALONE]


@pytest.mark.slow
@given(st.lists(st.sampled_from(COMBINED), min_size=1, max_size=6, unique_by=lambda fault: fault.name))
@settings(max_examples=60)
def test_faults_are_found_together(faults: list) -> None:  # type: ignore[type-arg]
    names = {fault.name for fault in faults}
    chosen = [fault for fault in faults if not fault.excludes & names]
    found = found_on("hgx-h100+" + ",".join(fault.name for fault in faults))
    for fault in chosen:
        hidden = sorted(fault.finds - found)
        assert not hidden, (
            f"{place_of_fault(fault.name)}: another of {sorted(names)} hides {hidden}; add it to excludes of "
            "the fault, or to probes/simulation/faults/hides.toml"
        )


@pytest.mark.slow
@given(st.lists(st.sampled_from(COMBINED), min_size=2, max_size=3, unique_by=lambda fault: fault.name))
@settings(max_examples=60)
def test_no_fault_is_listed_below_one_of_another_device(faults: list) -> None:  # type: ignore[type-arg]
    """What is below another finding shares a device with it, unless that one concerns the whole node."""
    name = "hgx-h100+" + ",".join(fault.name for fault in faults)
    found, names = findings_on(name), DeviceNames(examination_of(name))
    of_node = {check.id for check in CHECKS if check.scope is Scope.NODE}
    of_node |= {finding.part_of for finding in found.values() if finding.is_present and not finding.devices}
    for finding in found.values():
        if not finding.is_present or not finding.part_of or finding.part_of in of_node:
            continue
        root = found[finding.part_of]
        ends = {end for device in finding.devices for end in names.on_path(device)}
        about = {end for device in root.devices for end in names.of(device)}
        assert not root.part_of
        assert not ends or not about or ends & about, (name, finding.id, root.id)


def test_every_family_of_nics_without_dmabuf_has_a_fault() -> None:
    text = Path(nic.__file__).with_suffix(".toml").read_text(encoding="utf-8")
    without = [
        family.name for family in FAMILIES if family.no_dmabuf and f'"{family.vendor:04x}:' not in text
    ]
    assert not without, f"add a fault to probes/simulation/faults/nic.toml for {without}"


def test_every_check_has_a_fault() -> None:
    faulted = {found for fault in FAULTS.values() for found in (*fault.finds, *fault.shows)}
    # Only a forecast finds these, and tests/probes/setup/test_forecast.py has a node for each.
    before_a_boot = {"boot-settings-not-written", "boot-image-older-than-settings"}
    # Saved results are no part of a node; tests/probes/bandwidth/results/test_slow_results.py has them.
    by_results = {"bandwidth-below-limit", "spark-degraded-initialization"}
    # Modules are asked by gdrtop topo --ports alone; tests/tui/commands/test_topo.py has a node for each.
    by_asking = {"optic-power", "optic-fault"}
    checked = {check.id for check in CHECKS}
    unfaulted = checked - before_a_boot - by_results - by_asking - faulted
    without_fault = sorted(f"{id_} ({place_of_check(id_)})" for id_ in unfaulted)
    assert not without_fault, f"add a fault to probes/simulation/faults/ that finds {without_fault}"
    without_check = sorted(faulted - checked)
    assert not without_check, f"no check has the id {without_check}, which a fault finds"
    assert not faulted & (before_a_boot | by_results), "this test lists checks without a fault that have one"


@pytest.mark.parametrize("name", ["hgx-h100", "dgx-a100", "gb200", "cloud-vm", "hgx-b200"])
def test_a_port_at_half_rate_is_found_on_every_node_that_has_it(name: str) -> None:
    assert "single-rail-or-half-rate" in found_on(f"{name}+half-rate")


@pytest.mark.parametrize(
    ("fault", "nic", "gbps"), [("half-rate", "mlx5_2", 200), ("one-lane", "mlx5_7", 100)]
)
def test_a_slow_port_carries_no_more_than_its_rate(fault: str, nic: str, gbps: int) -> None:
    seconds = [0.0]
    host = SimulatedHost(f"hgx-h100+{fault}", clock=lambda: seconds[0])
    path = f"/sys/class/infiniband/{nic}/ports/1/counters/port_xmit_data"
    before = int(str(host.read(path)))
    seconds[0] = 10.0
    words = int(str(host.read(path))) - before  # of four bytes
    assert 0 < words * 4 * 8 / 10 / 1e9 <= gbps


@pytest.mark.parametrize("name", ["hgx-h100", "aws-p5", "hgx-b200"])
def test_a_port_that_is_down_carries_nothing(name: str) -> None:
    """Its device has another name on each of these nodes."""
    seconds = [0.0]
    host = SimulatedHost(f"{name}+port-down", clock=lambda: seconds[0])
    ports = [f"/sys/class/infiniband/{nic.name}/ports/1" for nic in host.tree.nics]
    (down,) = (port for port in ports if host.read(f"{port}/state") == "1: DOWN")
    for counter in ("port_xmit_data", "port_rcv_data"):
        before = host.read(f"{down}/counters/{counter}")
        seconds[0] += 10.0
        assert host.read(f"{down}/counters/{counter}") == before
    assert "ib-port-not-active" in found_on(f"{name}+port-down")


def test_titles_begin_with_a_capital() -> None:
    """A capital letter, but for the names of modules, commands and files."""
    names = {"nvidia", "modprobe", "perftest", "perftest's", "gdrdrv", "libibverbs", "efa"}
    begins = {text.split()[0] for check in CHECKS for text in (check.texts().title, check.texts().ok)}
    assert {word for word in begins if word[0].islower() and word.replace("'", "").isalpha()} <= names


def test_ids_are_unique() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)
