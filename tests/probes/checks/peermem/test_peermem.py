"""nvidia_peermem: missing, not needed, badly built, or loaded by mistake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Unknown
from probes.checks.registry import findings
from probes.facts.kernel.module_files import DkmsModule, ModuleFileFacts
from probes.facts.system.services import ServiceFacts, ServiceState
from probes.queries.finding import Status
from probes.simulation.faults.catalogue import FAULTS
from tests.support.changed_facts import with_module, with_service, without
from tests.support.doctor import examination_of, findings_on, found_on
from tests.support.module_nodes import HGX, NEEDS_ROOT, NOT_THERE, log, says, without_dmabuf
from tests.support.tiers import usual


def test_peermem_that_is_absent_is_no_fault_where_dmabuf_works() -> None:
    node = without(with_module(examination_of(HGX), "nvidia_peermem", persistent=None), "nvidia_peermem")
    assert says(node, "peermem-not-loaded").status is Status.PASSED
    assert not {name for name in found_on("gb200") if name.startswith("peermem")}


def test_peermem_that_the_node_is_set_up_to_load_is_a_note_where_dmabuf_works() -> None:
    finding = says(without(examination_of(HGX), "nvidia_peermem"), "peermem-not-loaded")
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.NOTE)


def test_peermem_that_is_absent_is_critical_where_dmabuf_does_not_work() -> None:
    finding = says(without_dmabuf(without(examination_of(HGX), "nvidia_peermem")), "peermem-not-loaded")
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.CRITICAL)
    assert finding.fix is not None
    assert finding.fix.steps[0].argv == ("modprobe", "nvidia_peermem")


def test_the_need_for_peermem_is_unknown_if_dmabuf_is() -> None:
    node = without(examination_of(HGX), "nvidia_peermem")
    direct = node.node.gpudirect
    assert not isinstance(direct, Unknown)
    open_question = replace(direct, dmabuf=replace(direct.dmabuf, usable=NEEDS_ROOT))
    finding = says(replace(node, node=replace(node.node, gpudirect=open_question)), "peermem-not-loaded")
    assert finding.status is Status.UNKNOWN
    assert "needs root" in finding.cause


def test_a_refcnt_of_0_is_no_fault() -> None:
    node = examination_of("dgx-a100")
    idle = replace(node, reading=replace(node.reading, peermem=replace(node.reading.peermem, refcnt=0)))
    assert says(idle, "peermem-reference-leak").status is Status.PASSED
    assert not {
        finding.id
        for finding in findings(idle)
        if finding.status is Status.FOUND and finding.severity is not Severity.NOTE
    }


def test_references_of_hidden_processes_are_no_leak() -> None:
    node = examination_of("dgx-a100+peermem-reference-leak")
    assert says(node, "peermem-reference-leak").status is Status.FOUND
    assert not isinstance(node.processes, Unknown)
    hidden = replace(node, processes=replace(node.processes, hidden=3))
    assert says(hidden, "peermem-reference-leak").status is Status.UNKNOWN
    assert "needs root" in says(hidden, "peermem-reference-leak").cause


def test_an_empty_log_does_not_prove_that_peermem_works() -> None:
    """On success the module is silent: a log without a word of it is no sign of anything."""
    assert findings_on(HGX)["peermem-parameter-invalid"].status is Status.PASSED
    node = examination_of(HGX)
    assert not isinstance(node.kernel_log, Unknown)
    assert not any("peermem" in message.text for message in node.kernel_log.messages)


def test_both_spellings_of_the_module_name_are_accepted() -> None:
    assert findings_on("dgx-a100")["peermem-not-persistent"].status is Status.PASSED
    assert findings_on("dgx-a100+peermem-not-persistent")["peermem-not-persistent"].status is Status.FOUND


@pytest.mark.parametrize(
    "line",
    [
        "/etc/modprobe.d/gdr.conf:2: softdep nvidia post: nvidia_peermem",
        "/usr/lib/modprobe.d/nvidia.conf:9: softdep nvidia pre: ib_core post: nvidia-uvm nvidia-peermem",
    ],
)
def test_a_softdep_line_loads_peermem_as_well(line: str) -> None:
    node = examination_of("dgx-a100+peermem-not-persistent")
    finding = says(with_module(node, "nvidia_peermem", softdep=line), "peermem-not-persistent")
    assert finding.status is Status.PASSED
    assert finding.evidence[0].source == line.partition(": ")[0]


def test_a_unit_that_runs_modprobe_loads_peermem_as_well() -> None:
    node = examination_of("dgx-a100+peermem-not-persistent")
    assert isinstance(node.services, ServiceFacts)
    unit = "/etc/systemd/system/load-peermem.service: ExecStart=/sbin/modprobe nvidia-peermem"
    loaded = replace(node, services=replace(node.services, modprobe={"nvidia_peermem": unit}))
    assert says(loaded, "peermem-not-persistent").status is Status.PASSED


def test_the_cause_names_loaders_that_were_not_checked() -> None:
    finding = findings_on("dgx-a100+peermem-not-persistent")["peermem-not-persistent"]
    assert finding.severity is Severity.WARNING
    assert "Other loaders" in finding.cause
    hidden = examination_of("dgx-a100+peermem-not-persistent")
    assert isinstance(hidden.services, ServiceFacts)
    unread = replace(hidden, services=replace(hidden.services, unread=("/etc/systemd/system/x.service",)))
    assert says(unread, "peermem-not-persistent").status is Status.UNKNOWN


def test_unneeded_peermem_at_boot_is_a_note_with_the_line_to_delete() -> None:
    name = "peermem-unneeded-at-boot"
    finding = findings_on(f"pcie-l40s+{name}")[name]
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.NOTE)
    assert finding.fix is not None
    assert "/etc/systemd/system/load-peermem.service" in finding.fix.steps[-1].why
    needing = examination_of("dgx-a100")
    assert says(needing, name).status is Status.PASSED
    uses = replace(needing.reading.peermem, refcnt=NEEDS_ROOT)
    unread = replace(needing, reading=replace(needing.reading, peermem=uses))
    assert says(unread, name).status is Status.PASSED  # the node needs it, whatever uses it
    node = examination_of(f"pcie-l40s+{name}")
    in_use = replace(node, reading=replace(node.reading, peermem=replace(node.reading.peermem, refcnt=4)))
    assert says(in_use, name).status is Status.PASSED


PEERMEM_FAULTS = [
    name
    for name, fault in FAULTS.items()
    if fault.on == HGX
    and any(name.startswith(("peermem-", "nv-peer-mem", "inbox-core")) for name in fault.finds)
]


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERMEM_FAULTS)
def test_peermem_faults_are_notes_where_dmabuf_works(name: str) -> None:
    """NVIDIA deprecates it: DMA-BUF is what to care for."""
    for finding in findings_on(f"{HGX}+{name}").values():
        if finding.id in FAULTS[name].finds:
            assert finding.severity is Severity.NOTE


def test_ofed_libraries_on_inbox_modules_are_a_note_with_dmabuf() -> None:
    name = "inbox-core-beside-ofed"
    assert findings_on(f"{HGX}+{name}")[name].severity is Severity.NOTE
    assert says(without_dmabuf(examination_of(f"{HGX}+{name}")), name).severity is Severity.WARNING


def test_dkms_storage_modules_do_not_count_as_the_driver() -> None:
    """nvidia-fs begins with nvidia, and has no nvidia_peermem."""
    node = examination_of(f"{HGX}+peermem-not-on-disk")
    assert not isinstance(node.dkms, Unknown)
    storage = DkmsModule("nvidia-fs", "2.25.7", ("6.8.0-58-generic",), ("6.8.0-58-generic",), None)
    beside = replace(node, dkms=replace(node.dkms, modules=(*node.dkms.modules, storage)))
    assert says(beside, "peermem-not-on-disk").status is Status.FOUND
    assert says(beside, "peermem-not-on-disk-other-kernel").status is Status.PASSED


@pytest.mark.parametrize(("release", "legacy"), [("5.0-2.1.8.0", True), ("5.1-0.6.6.0", False)])
def test_mlnx_ofed_5_0_still_needs_the_legacy_setting(release: str, legacy: bool) -> None:
    node = examination_of("dgx-a100")
    assert not isinstance(node.tools, Unknown)
    old = replace(node, tools=replace(node.tools, ofed=f"MLNX_OFED_LINUX-{release}"))
    told = with_module(old, "nvidia_peermem", parameters={"peerdirect_support": "1"})
    expected = (Status.FOUND, Status.PASSED) if legacy else (Status.PASSED, Status.FOUND)
    assert says(old, "peermem-parameter-legacy-ofed").status is expected[0]
    assert says(told, "peermem-parameter-wrong").status is expected[1]


def test_peermem_that_is_loaded_has_registered() -> None:
    """There is no state "loaded, but not registered": missing memory_peers says nothing."""
    assert isinstance(examination_of(HGX).reading.peermem.peers, Unknown)
    ours = [finding for finding in findings_on(HGX).values() if finding.id.startswith("peermem")]
    assert not [finding.id for finding in ours if finding.status is Status.FOUND]


def test_an_old_message_means_nothing_once_the_module_is_loaded() -> None:
    said = "<4>[   15.1] nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client\n"
    node = replace(examination_of(HGX), kernel_log=log(said))
    assert says(node, "peermem-symbol-version-mismatch").status is Status.PASSED


def test_a_symbol_of_another_version_is_not_an_unknown_symbol() -> None:
    found = found_on("hgx-h100+peermem-symbol-version-mismatch")
    assert "peermem-unknown-symbol-inbox-core" not in found
    assert "peermem-symbol-version-mismatch" not in found_on("hgx-h100+peermem-unknown-symbol-inbox-core")


def test_a_build_before_ofed_differs_from_a_stack_without_symbols() -> None:
    name = "peermem-built-without-symbols"
    with_ofed = findings_on(f"dgx-a100+{name}")[name]
    assert "before OFED" in with_ofed.cause
    node = examination_of(f"dgx-a100+{name}")
    assert isinstance(node.module_files, ModuleFileFacts)
    bare = replace(node, module_files=replace(node.module_files, peer_memory=()))
    assert "no peer-memory interface" in says(bare, name).cause


def test_inbox_mlx5_with_peermem_does_not_work() -> None:
    """Without OFED there are no symbols to build against; with DMA-BUF nobody needs them."""
    name = "peermem-built-without-symbols"
    assert findings_on("pcie-l40s")[name].status is Status.PASSED
    closed = without_dmabuf(examination_of("pcie-l40s"))
    assert says(closed, name).severity is Severity.CRITICAL


def test_the_inbox_ib_core_is_ok_without_ofed() -> None:
    assert findings_on("pcie-l40s")["inbox-core-beside-ofed"].status is Status.PASSED


def test_legacy_peerdirect_is_ok_only_with_old_ofed() -> None:
    node = examination_of("dgx-a100+peermem-parameter-legacy-ofed")
    told = with_module(node, "nvidia_peermem", parameters={"peerdirect_support": "1"})
    assert says(told, "peermem-parameter-legacy-ofed").status is Status.PASSED
    assert says(told, "peermem-parameter-wrong").status is Status.PASSED


def test_the_old_module_is_critical_only_if_nccl_does_not_see_it() -> None:
    name = "nv-peer-mem-conflict"
    assert findings_on(f"dgx-a100+{name}")[name].severity is Severity.WARNING
    node = examination_of(f"dgx-a100+{name}")
    peermem = replace(node.reading.peermem, peers=NOT_THERE)
    unseen = replace(node, reading=replace(node.reading, peermem=peermem))
    assert says(unseen, name).severity is Severity.CRITICAL


def test_an_unknown_boot_service_makes_the_race_unknown() -> None:
    node = with_service(
        without(examination_of(HGX), "nvidia_peermem"), "systemd-modules-load", state=NEEDS_ROOT
    )
    assert says(node, "boot-load-race").status is Status.UNKNOWN
    assert says(node, "peermem-lost-after-driver-update").status is Status.UNKNOWN


def test_a_successful_boot_is_no_race() -> None:
    node = without(examination_of(HGX), "nvidia_peermem")
    assert says(node, "boot-load-race").status is Status.PASSED
    failed = with_service(node, "systemd-modules-load", state=ServiceState.FAILED)
    assert says(failed, "peermem-lost-after-driver-update").status is Status.PASSED


def test_a_missing_memory_peers_directory_alone_is_no_fault() -> None:
    node = without_dmabuf(examination_of(HGX))
    assert isinstance(node.reading.peermem.peers, Unknown)
    visible = replace(node, processes=replace(node.processes, hidden=0))  # type: ignore[type-var]
    assert says(visible, "memory-peers-missing-old-nccl").status is Status.PASSED


_SPARE_FAULTS = [
    name
    for name, fault in FAULTS.items()
    if name.startswith(("peermem-", "nv-peer-mem-"))
    and fault.on == HGX
    and name
    not in ("peermem-reference-leak", "peermem-invalid-context-flood", "peermem-lock-inversion")  # no repair
]


@pytest.mark.parametrize("name", usual(_SPARE_FAULTS, ("peermem-not-loaded", "peermem-not-persistent")))
def test_where_dmabuf_works_a_repair_of_peermem_says_that_dmabuf_is_better(name: str) -> None:
    direct = examination_of(f"{HGX}+{name}").node.gpudirect
    assert not isinstance(direct, Unknown)
    assert direct.dmabuf.usable is True
    for check in FAULTS[name].finds:
        finding = findings_on(f"{HGX}+{name}")[check]
        assert finding.severity is Severity.NOTE
        assert finding.fix is not None
        assert finding.fix.note.startswith("Prefer DMA-BUF")


def test_in_a_driver_container_the_cure_is_a_new_driver_pod() -> None:
    name = "hgx-h100+k8s-operators,peermem-symbol-version-mismatch"
    fix = findings_on(name)["peermem-symbol-version-mismatch"].fix
    assert fix is not None
    assert "driver pod" in fix.disturbs
    assert any("kubectl delete pod" in step.why for step in fix.steps)
    assert not any(step.argv for step in fix.steps)
