"""nvidia_peermem and ib_core of different OFED versions: what works now, and what the next boot brings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.facts.kernel.module_files import PEER_MEMORY_SYMBOL, ModuleFileFacts
from probes.facts.kernel.symbol_versions import SymbolVersions
from probes.plans.load_modules import load_modules, refused_before
from probes.queries.finding import Status
from probes.queries.modules import is_refused_now
from probes.setup.forecast import forecast
from probes.setup.twin.build import make_twin
from probes.simulation.host import SimulatedHost
from probes.simulation.node.modules.modules import OFED_VERSIONS, OTHER_VERSIONS, modinfo_of, version_table
from probes.snapshot.examination import Examination, examine
from probes.snapshot.verdict import State
from tests.support.doctor import examination_of, findings_on
from tests.support.module_nodes import NEEDS_ROOT, log, says
from tests.support.pilot import SteppedClock

NAME = "peermem-symbol-version-mismatch"
REFUSED, REPLACED = f"dgx-a100+{NAME}", "dgx-a100+ofed-replaced-under-peermem"
SAID = f"<4>[   15.1] nvidia_peermem: disagrees about version of symbol {PEER_MEMORY_SYMBOL}\n"


def versions_of(node: Examination) -> SymbolVersions:
    versions = node.symbol_versions
    assert not isinstance(versions, Unknown)
    return versions


def rebuild(host: SimulatedHost) -> None:
    """Do what DKMS does: build nvidia_peermem against the OFED that is installed."""
    table, files = version_table(host.tree), modinfo_of(host.tree).files
    exported = table.exported[files["ib_core"]["filename"]]
    table.needed[files["nvidia_peermem"]["filename"]] = exported


def host_of(name: str) -> SimulatedHost:
    return SimulatedHost(name, clock=SteppedClock())


def state_after_reboot(host: SimulatedHost) -> State:
    node = examine(host)
    kernel = forecast(host, node, NEEDS_ROOT).chosen(host.tree.description.kernel)
    assert kernel is not None
    return kernel.verdict.state


@pytest.mark.parametrize(("name", "works_now"), [(REFUSED, False), (REPLACED, True)])
def test_the_forecast_is_what_the_boot_brings(name: str, works_now: bool) -> None:
    host = host_of(name)
    assert ("nvidia_peermem" in host.tree.live_modules) is works_now
    expected = state_after_reboot(host)
    host.reboot()
    assert expected is State.BROKEN
    assert "nvidia_peermem" not in host.tree.live_modules
    assert says(examine(host), NAME).severity is Severity.CRITICAL


def test_a_loaded_module_that_the_next_boot_refuses_is_a_warning_with_its_fix() -> None:
    finding = findings_on(REPLACED)[NAME]
    assert finding.severity is Severity.WARNING
    assert "works until the next boot" in finding.cause
    assert [row.value for row in finding.evidence] == [
        f"0x{versions[PEER_MEMORY_SYMBOL]:08x} {PEER_MEMORY_SYMBOL}"
        for versions in (OFED_VERSIONS, OTHER_VERSIONS)
    ]
    assert findings_on(REPLACED)["initramfs-stale"].part_of == NAME  # its fix is a reboot
    assert finding.fix is not None
    # The running ib_core is the old one: what is built now fits the next boot.
    assert [step.argv[:2] for step in finding.fix.steps] == [
        ("dkms", "build"),
        ("dkms", "install"),
        ("depmod", "-a"),
    ]


def test_without_the_log_the_files_show_why_the_kernel_refuses_the_module() -> None:
    node = replace(examination_of(REFUSED), kernel_log=NEEDS_ROOT)
    finding = says(node, NAME)
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.CRITICAL)
    assert "Invalid argument" in finding.cause
    assert "rebuild it for the running RDMA stack" in refused_before(node, "nvidia_peermem")
    assert says(replace(node, symbol_versions=NEEDS_ROOT), NAME).status is Status.UNKNOWN


@pytest.mark.parametrize("is_loaded", [False, True])
def test_the_exporter_may_be_any_module(is_loaded: bool) -> None:
    """Broadcom's ib_peer_mem; of a loaded one it is unknown whether it is the one on disk."""
    node = examination_of(REFUSED)
    modules = node.node.modules
    assert not isinstance(modules, Unknown)
    peers = () if is_loaded else Unknown(Reason.NOT_THERE, "memory_peers")
    other = replace(
        node,
        node=replace(node.node, modules=replace(modules, memory_peers=peers)),
        symbol_versions=replace(versions_of(node), exporter="ib_peer_mem"),
    )
    assert says(other, NAME).status is Status.FOUND
    assert isinstance(is_refused_now(other), Unknown) is is_loaded
    assert str(load_modules(other)).startswith("nvidia_peermem cannot be loaded")


def test_a_rebuild_makes_the_message_in_the_log_old() -> None:
    host = host_of(REFUSED)
    rebuild(host)
    node = examine(host)
    assert SAID.split("] ")[1] in "".join(host.tree.kernel_log)
    assert says(node, NAME).status is Status.PASSED
    assert refused_before(node, "nvidia_peermem") == ""
    assert state_after_reboot(host) is State.READY
    twin = make_twin(host, node)
    assert twin.perform(("modprobe", "nvidia_peermem")).exit_status == 0
    assert "nvidia_peermem" in twin.tree.live_modules
    assert host.perform(("modprobe", "nvidia_peermem")).exit_status == 0


def test_the_log_decides_where_a_version_is_unknown() -> None:
    node = replace(examination_of("dgx-a100+peermem-not-loaded"), symbol_versions=NEEDS_ROOT)
    assert says(node, NAME).status is Status.PASSED
    assert says(replace(node, kernel_log=log(SAID)), NAME).status is Status.FOUND


def test_after_ofed_was_replaced_the_old_module_still_loads_until_the_boot() -> None:
    host = host_of(REPLACED)
    for program in list(host.tree.programs):
        host.tree.programs.remove(program)
    host.tree.drop_references("job")
    assert host.perform(("rmmod", "nvidia_peermem")).exit_status == 0
    finding = says(examine(host), NAME)
    assert finding.status is Status.FOUND
    assert "after the next boot" in finding.cause
    assert host.perform(("modprobe", "nvidia_peermem")).exit_status == 0
    rebuild(host)
    host.perform(("rmmod", "nvidia_peermem"))
    assert host.perform(("modprobe", "nvidia_peermem")).exit_status == 1  # ib_core is still the old one
    assert state_after_reboot(host) is State.READY


def test_a_rebuild_against_another_ofed_is_not_the_whole_fix() -> None:
    """What the build finds first is a link that leads to the headers of another OFED."""
    node = examination_of(REFUSED)
    assert isinstance(node.module_files, ModuleFileFacts)
    symbol = replace(node.module_files.peer_memory[0], crc=0x1234)
    other = replace(node, module_files=replace(node.module_files, peer_memory=(symbol,)))
    fix, usual = says(other, NAME).fix, says(node, NAME).fix
    assert fix is not None
    assert usual is not None
    assert "/usr/src/ofa_kernel/default/Module.symvers" in fix.steps[0].why
    assert fix.steps[1:] == usual.steps


def test_where_dmabuf_works_it_is_a_note() -> None:
    for fault in (NAME, "ofed-replaced-under-peermem"):
        assert findings_on(f"hgx-h100+{fault}")[NAME].severity is Severity.NOTE


def test_the_versions_of_a_node_without_ofed_are_unknown() -> None:
    assert isinstance(versions_of(examination_of("pcie-l40s")).differ, Unknown)
    assert findings_on("pcie-l40s")[NAME].status is Status.PASSED
