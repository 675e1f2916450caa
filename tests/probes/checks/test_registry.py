"""What every check must report, and how findings with one cause are grouped."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.base.data_files import read_toml
from probes.base.evidence import Evidence, Severity
from probes.checks import registry
from probes.checks.headline import headline
from probes.checks.judgment import judge
from probes.checks.registry import CHECKS, findings, findings_of, run_checks
from probes.host.machine.local import LocalHost
from probes.live.job_examination import examine_with_jobs
from probes.queries.finding import STAGED, Area, Check, Finding, Outcome, Status, Texts, found, passed
from probes.queries.finding import _read_texts as texts
from probes.queries.jobs import OVER_TCP
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.host import SimulatedHost
from tests.support.doctor import examination_of, findings_on
from tests.support.simulated_tree import write_tree
from tests.support.tiers import USUAL_FAULTS, usual
from tests.support.verdict_nodes import with_ports

# Words with which a title would read as half a sentence.
_BARE_VERBS = {
    "is",
    "are",
    "was",
    "were",
    "has",
    "have",
    "does",
    "do",
    "can",
    "cannot",
    "needs",
    "runs",
    "lacks",
}
# Faults with more than one critical finding, and why.
ARGUED: dict[str, int] = {"new-node": 2}  # nothing is installed: neither the driver nor Fabric Manager


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_every_check_has_a_problem_an_impact_and_a_positive_title(check: Check) -> None:
    text = check.texts()
    assert text.title
    assert text.source
    assert text.ok, "the title of a passed check is missing"
    assert text.impact, "what the user loses is missing"
    assert text.ok != text.title
    assert not text.title.endswith(".")
    assert text.title.split()[0] not in _BARE_VERBS


def test_every_check_has_texts_and_no_text_is_left_over() -> None:
    folders = [path.parent.name for path in Path(registry.__file__).parent.glob("*/texts.toml")]
    written = [name for folder in folders for name in read_toml(f"probes.checks.{folder}", "texts.toml")]
    ids = {check.id for check in CHECKS}
    missing, left_over = sorted(ids - {*written}), sorted({*written} - ids)
    assert not missing, f"texts.toml beside the check does not have {missing}"
    assert not left_over, f"no check has the texts {left_over}"
    assert len(written) == len(ids)


@pytest.mark.parametrize("shared", [STAGED, OVER_TCP])
def test_what_many_checks_say_is_the_same_everywhere(shared: str) -> None:
    """Each text has it in full, and so has the code: whoever changes one must change all."""
    begin = " ".join(shared.split()[:5])
    impacts = [check.texts().impact for check in CHECKS]
    assert len([text for text in impacts if shared in text]) > 5
    assert not [text for text in impacts if begin in text and shared not in text]


def test_a_node_without_a_problem_is_judged_without_reading_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take 10 ms to read; a command needs only those of the findings that it shows."""
    node = examination_of("hgx-h100")
    texts.cache_clear()
    monkeypatch.setattr("probes.queries.finding.read_toml_once", None)
    judgment = judge(node)
    assert judgment.verdict.state.is_green
    assert headline(judgment, None, {}).effect == "GPUDirect RDMA works here"


def test_a_check_function_is_named_as_its_id() -> None:
    """The id stays a literal, because users grep for it; its function is found by the same words."""
    functions = [(check.id, check.judge) for check in CHECKS if isinstance(check.judge, FunctionType)]
    by_itself = [(name, judge) for name, judge in functions if judge.__qualname__ == judge.__name__]
    assert not [name for name, judge in by_itself if judge.__name__ != name.replace("-", "_")]


def test_an_area_with_a_place_of_its_own_is_listed_there_alone() -> None:
    """Of two findings of one severity the first is the headline; which file holds a check decides nothing."""
    ids = [check.id for check in CHECKS]
    assert len(ids) == len({*ids})
    for before, after in (
        ("peermem-parameter-invalid", "peermem-not-persistent"),
        ("vm-pair-unproven", "gpu-nic-cross-socket"),
        ("ib-port-not-active", "nic-health-errors"),
        ("fabric-manager-down", "imex-down"),
        ("imex-down", "xid-119-gsp-timeout"),
    ):
        assert ids.index(before) < ids.index(after)
    of_variables = {check.id for area in registry.VARIABLE_AREAS for check in area.checks}
    assert "nccl-gid-index-missing" in of_variables
    assert not of_variables & {
        "vmm-memory-with-peermem",
        "ucx-far-nic",
    }  # they look at processes, not at values


def counted(name: str) -> list[Finding]:
    """The findings that a fault adds and that are counted, on "hgx-h100+acs-on"."""
    node = name.partition("+")[0]
    before = {finding.id for finding in findings_on(node).values() if finding.status is Status.FOUND}
    return [
        finding
        for finding in findings_on(name).values()
        if finding.status is Status.FOUND and not finding.part_of and finding.id not in before
    ]


@pytest.mark.parametrize("name", usual(FAULTS, USUAL_FAULTS))
def test_one_fault_is_one_critical_finding(name: str) -> None:
    critical = [
        finding.id
        for finding in counted(f"{FAULTS[name].on}+{name}")
        if finding.severity is Severity.CRITICAL
    ]
    assert len(critical) <= ARGUED.get(name, 1), critical


def test_devices_in_other_network_namespaces_are_not_missing() -> None:
    """From the host of a pod that has the RDMA devices, the pod's NCCL_IB_HCA names none of this node."""
    name = "pcie-l40s+rdma-devices-in-pods"
    assert [finding.id for finding in counted(name) if finding.severity is Severity.CRITICAL] == []
    found = findings_on(name)
    assert found["nccl-ib-hca-mismatch"].status is Status.UNKNOWN
    assert "network namespace that the RDMA devices are in" in found["nccl-ib-hca-mismatch"].cause
    assert found["no-gdr-path"].status is Status.UNKNOWN
    assert found["peermem-built-without-symbols"].status is not Status.FOUND


def test_a_node_without_a_path_names_the_module_to_load_first() -> None:
    every = findings_on("dgx-a100+no-gdr-path")
    assert next(iter(every)) == "peermem-not-loaded"
    assert [finding.id for finding in counted("dgx-a100+no-gdr-path")] == ["peermem-not-loaded"]
    assert every["no-gdr-path"].part_of == "peermem-not-loaded"
    assert every["dmabuf-needs-open-module"].part_of == "peermem-not-loaded"
    fix = every["peermem-not-loaded"].fix
    assert fix is not None
    assert fix.steps[0].argv == ("modprobe", "nvidia_peermem")


def test_the_proprietary_driver_is_not_marked() -> None:
    for name in ("dgx-a100+no-gdr-path", "hgx-h100+dmabuf-needs-open-module"):
        marked = [finding.id for finding in findings_on(name).values() if "nvidia" in finding.devices]
        assert marked == []


def test_without_ofed_the_open_driver_is_the_repair() -> None:
    names = Counter(finding.part_of for finding in findings_on("pcie-l40s+k8s-rdma-not-enabled").values())
    assert names["dmabuf-needs-open-module"] == 5  # no-gdr-path, twice nvidia_peermem, the log, and the job


@pytest.mark.parametrize("root", ["nvidia-not-loaded", "ib-core-not-loaded", "dkms-not-built-for-kernel"])
def test_consequences_of_a_missing_module_are_listed_under_it(root: str) -> None:
    name = f"pcie-l40s+{root}"
    assert [finding.id for finding in counted(name)] == [root]
    assert findings_on(name)["no-gdr-path"].part_of == root


# Chains of causes, on checks made for it


def checks_in(area: Area) -> tuple[Check, ...]:
    """Return checks that no texts.toml has."""
    return tuple(replace(check, texts=partial(Texts, check.id, "nowhere")) for check in area.checks)


def checks_of(
    monkeypatch: pytest.MonkeyPatch, **causes: tuple[Severity, tuple[str, ...]]
) -> dict[str, Finding]:
    """Return the findings of checks that all find something, with these severities and causes."""
    area = Area("modules", "")
    for name, (severity, part_of) in causes.items():

        def judge(_: object, part_of: tuple[str, ...] = part_of) -> Outcome:
            return found("it is", Evidence("here", "seen"), part_of=part_of)

        area.check(severity, name)(judge)
    area.critical("well")(lambda _: passed(Evidence("here", "seen")))
    monkeypatch.setattr(registry, "CHECKS", checks_in(area))
    return {finding.id: finding for finding in findings(examination_of("hgx-h100"))}


def test_a_chain_of_causes_ends_at_the_top(monkeypatch: pytest.MonkeyPatch) -> None:
    note = Severity.NOTE
    found = checks_of(monkeypatch, a=(note, ("b",)), b=(note, ("absent", "well", "c")), c=(note, ()))
    assert (found["a"].part_of, found["b"].part_of, found["c"].part_of) == ("c", "c", "")


def test_a_circle_of_causes_has_one_root(monkeypatch: pytest.MonkeyPatch) -> None:
    note = Severity.NOTE
    found = checks_of(monkeypatch, a=(note, ("b",)), b=(note, ("c",)), c=(note, ("b",)), d=(note, ("d",)))
    assert [found[name].part_of for name in "abcd"] == ["b", "", "b", ""]


def test_the_root_is_as_severe_as_its_worst_consequence(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checks_of(monkeypatch, a=(Severity.NOTE, ()), b=(Severity.CRITICAL, ("a",)))
    assert found["a"].severity is Severity.CRITICAL
    assert found["b"].part_of == "a"


_DEVICES = [f"0000:0{number}:00.0" for number in range(4)]
_FOUND = st.tuples(st.sets(st.sampled_from(_DEVICES), min_size=1), st.lists(st.sampled_from("abcdef")))


@given(st.lists(_FOUND, min_size=2, max_size=6))
@settings(max_examples=200)
def test_no_finding_hides_a_device_with_another_fault(chosen: list[tuple[set[str], list[str]]]) -> None:
    """Whatever may be the cause of what: the findings that are counted name every device."""
    area = Area("gpu", "")
    for name, (devices, part_of) in zip("abcdef", chosen, strict=False):
        outcome = found(
            "it is", Evidence("here", "seen"), devices=tuple(sorted(devices)), part_of=tuple(part_of)
        )
        area.warning(name)(partial(_return, outcome))
    node = examination_of("hgx-h100")
    every = {finding.id: finding for finding in findings_of(run_checks(node, checks_in(area)), node)}
    roots = [finding for finding in every.values() if not finding.part_of]
    assert {finding.part_of for finding in every.values()} - {""} <= {root.id for root in roots}
    for finding in every.values():
        assert set(finding.devices) <= set(every.get(finding.part_of, finding).devices)


def _return(outcome: Outcome, _: object) -> Outcome:
    return outcome


def by_device(*named: tuple[str, tuple[str, ...], tuple[str, ...]]) -> dict[str, str]:
    """Return the root of each finding (id, devices, possible causes) on hgx-h100."""
    area = Area("nic", "")
    for name, devices, part_of in named:
        outcome = found("it is", Evidence("here", "seen"), devices=devices)
        area.warning(name, part_of=part_of)(partial(_return, outcome))
    node = examination_of("hgx-h100")
    return {finding.id: finding.part_of for finding in findings_of(run_checks(node, checks_in(area)), node)}


def test_a_cause_shares_each_device_by_any_name_or_is_above_it() -> None:
    """mlx5_3 is 0000:3d:00.0, below the bridge 0000:38:00.0."""
    slow = ("slow", ("mlx5_3",), ("link",))
    for cause in ("mlx5_3", "0000:3d:00.0", "0000:38:00.0", "mlx5_core"):
        assert by_device(slow, ("link", (cause,), ()))["slow"] == "link", cause
    for other in ("mlx5_2", "0000:3b:00.0", "0000:9c:00.0"):  # another NIC, the GPU near it, another switch
        assert by_device(slow, ("link", (other,), ()))["slow"] == "", other
    both = ("slow", ("mlx5_3", "mlx5_6"), ("link", "port"))
    assert by_device(both, ("link", ("mlx5_3",), ()), ("port", ("mlx5_6",), ()))["slow"] == ""
    assert by_device(both, ("link", ("mlx5_3",), ()), ("port", ("mlx5_3", "mlx5_6"), ()))["slow"] == "port"


def test_a_device_with_two_names_is_listed_once() -> None:
    assert findings_on("dgx-spark")["pcie-link-below-port-rate"].devices == (
        *("roceP2p1s0f0", "roceP2p1s0f1"),
        *("rocep1s0f0", "rocep1s0f1"),
    )


def test_a_fault_of_a_job_or_of_software_marks_no_hardware() -> None:
    for name in (
        "azure-nd-h100+nccl-net-socket",
        "hgx-h100+job-log-gdr-disabled",
        "hgx-h100+fabric-manager-down",
    ):
        loud = [finding for finding in findings_on(name).values() if finding.severity is not Severity.NOTE]
        assert not [finding.id for finding in loud if finding.is_present and finding.marked], name
    assert findings_on("pcie-l40s+ib-uverbs-not-loaded")["ib-uverbs-not-loaded"].marked == ("ib_uverbs",)
    assert findings_on("hgx-h100+port-down")["ib-port-not-active"].marked == ("mlx5_1",)


def test_a_note_with_a_warning_off_the_data_path_does_not_degrade(monkeypatch: pytest.MonkeyPatch) -> None:
    area = Area("modules", "")
    cause = found("it is", Evidence("here", "seen"))
    area.note("a", data_path=True)(lambda _: cause)
    area.warning("b")(lambda _: replace(cause, part_of=("a",)))
    monkeypatch.setattr(registry, "CHECKS", checks_in(area))
    root, _ = findings(examination_of("hgx-h100"))
    assert (root.id, root.severity, root.data_path) == ("a", Severity.WARNING, False)


def test_a_finding_selected_alone_is_counted() -> None:
    (alone,) = findings(examination_of("dgx-a100+no-gdr-path"), only={"no-gdr-path"})
    assert alone.part_of == ""


@pytest.mark.slow
def test_unknown_checks_of_a_tree_of_files_share_one_reason(tmp_path: Path) -> None:
    write_tree(SimulatedHost("hgx-h100"), tmp_path)
    every = findings(examine_with_jobs(LocalHost(str(tmp_path))))
    assert {finding.cause for finding in every if finding.status is Status.UNKNOWN} == {
        "needs a running node (this is a tree of files)"
    }


@pytest.mark.parametrize("name", usual(FAULTS, USUAL_FAULTS))
def test_steps_begin_with_a_capital_and_disturbs_has_no_period(name: str) -> None:
    for finding in findings_on(f"{FAULTS[name].on}+{name}").values():
        plan = finding.fix
        if plan is not None:
            for text in (plan.title, *(step.why for step in plan.steps), plan.note):
                assert text[:1].upper() == text[:1], text
            assert not plan.disturbs.endswith("."), plan.disturbs


@pytest.mark.parametrize(
    ("node", "check", "decided"),
    [
        (
            "hgx-h100+gpu-without-driver",
            "gpu-without-driver",
            "Search the kernel log for why nvidia has not bound",
        ),
        (
            "hgx-h100+nic-without-driver",
            "nic-without-driver",
            "Search the kernel log for why mlx5_core has not bound",
        ),
        ("hgx-h100+bar1-too-small", "bar1-too-small", "In the BIOS"),
        ("cloud-vm+bar1-too-small", "bar1-too-small", "Give the virtual machine more 64-bit MMIO space"),
        ("hgx-h100+job-rank-staged", "job-log-staged", "the log gives no reason"),
        (
            "hgx-h100+iommu-fault,iommu-translated",
            "iommu-fault",
            "Fix iommu-translated, then read the kernel log again",
        ),
    ],
)
def test_a_fix_decides_what_gdrtop_has_read(node: str, check: str, decided: str) -> None:
    fix = findings_on(node)[check].fix
    assert fix is not None
    assert any(decided in step.why for step in fix.steps), [step.why for step in fix.steps]


def test_a_gpu_whose_nearest_port_is_down_needs_that_port_and_no_other_slot() -> None:
    seen = examination_of("hgx-h100")
    down = replace(seen, node=with_ports(seen.node, "DOWN", "mlx5_6"))
    gpu = seen.topology.gpus[5].id
    why = {gpu: "GPU5 has no usable NIC within PXB: mlx5_6 is DOWN"}
    (finding,) = findings(
        replace(down, usability=replace(seen.usability, unserved=why)), only={"gpu-not-served"}
    )
    assert finding.fix is not None
    assert [step.why for step in finding.fix.steps] == ["Bring up mlx5_6, near the GPU"]
