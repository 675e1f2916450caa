"""GPU memory that the driver refuses to NICs, and old programs that do not see nvidia_peermem."""

from __future__ import annotations

from probes.checks.driver_version import DRIVER_VERSION, driver_version
from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.module_facts import PEERMEM, log_needed, log_of, log_seen
from probes.checks.module_need import loaded_peermem
from probes.checks.wording import SHOWN
from probes.examination import Examination
from probes.kernel_log import LogKind
from probes.plan import Plan, Step, instruction
from probes.plans.interruptions import REBOOT_ENDS_JOBS, reboot_step
from probes.unknown import Maybe, Reason, Unknown

AREA = Area("path")

_SOURCE = "https://github.com/NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia/"
_PARAMS = "/proc/driver/nvidia/params"
_OVERRIDE = "GrdmaPciTopoCheckOverride"
_FIRST_WITH_CHECK = (580, 65, 6)
_MEMORY_PEERS = "/sys/kernel/mm/memory_peers"
# The first release that looks for /sys/module/nvidia_peermem/version is 2.23.4.
_FIRST_NCCL = (2, 23, 4)


def _before_check(examination: Examination) -> Outcome | None:
    """Drivers before 580.65.06 refuse no topology."""
    driver = driver_version(examination)
    if isinstance(driver, Outcome):
        return driver
    version, numbers = driver
    if numbers < _FIRST_WITH_CHECK:
        return passed(Evidence(DRIVER_VERSION, f"{version}: refuses no topology (580.65.06 does)"))
    return None


@AREA.check(
    "p2p-topology-refused-override",
    Severity.CRITICAL,
    "NVreg_GrdmaPciTopoCheckOverride=2 makes the driver refuse GPU memory to every NIC (errno 524)",
    f"{_SOURCE}nv-reg.h, NVreg_GrdmaPciTopoCheckOverride",
)
def p2p_topology_refused_override(examination: Examination) -> Outcome:
    """The option as the driver has it; it bars DMA-BUF and nvidia-peermem alike."""
    aside = _before_check(examination)
    if aside is not None:
        return aside
    gpus = examination.node.gpus
    parameters = gpus if isinstance(gpus, Unknown) else gpus.driver.parameters
    if isinstance(parameters, Unknown):
        return unsure(f"{_PARAMS}: {parameters}")
    value = parameters.get(_OVERRIDE)
    if value != "2":
        return passed(Evidence(_PARAMS, f"{_OVERRIDE}: {value or 'not there'}"))
    steps = (
        instruction("delete NVreg_GrdmaPciTopoCheckOverride=2 from `options nvidia` in /etc/modprobe.d"),
        instruction("rebuild the initramfs: `update-initramfs -u` (Debian) or `dracut -f` (RPM)"),
        reboot_step("loads the driver with its new options"),
    )
    return found(
        "2 means: deny every topology. Registration of GPU memory ends with errno 524, by either way",
        Evidence(_PARAMS, f"{_OVERRIDE}: {value}"),
        fix=Plan("Drop the option", steps, needs_reboot=True, disturbs=REBOOT_ENDS_JOBS),
        devices=("nvidia",),
    )


def _refused(examination: Examination, words: str, cause: str, fix: Plan) -> Outcome:
    """What the driver said when it refused a NIC."""
    aside = _before_check(examination)
    if aside is not None:
        return aside
    messages = log_of(examination, (LogKind.P2P_REFUSED,), words=words)
    if isinstance(messages, Unknown):
        return log_needed(messages, words)
    if not messages:
        return passed(*log_seen(examination, messages))
    return found(cause, *log_seen(examination, messages), fix=fix, devices=("nvidia",))


@AREA.check(
    "p2p-topology-refused",
    Severity.CRITICAL,
    "the driver refused GPU memory to a NIC: the chipset is not known to carry it (errno 524)",
    f"{_SOURCE}nv-pci.c, nv_grdma_pci_topology_supported",
)
def p2p_topology_refused(examination: Examination) -> Outcome:
    """`PCI topology not supported` in the kernel log; GPU and NIC below one switch are never refused."""
    steps = (
        instruction(
            "use the NIC below the same PCIe switch as the GPU (NCCL_IB_HCA; `gdrtop`, affinity matrix)"
        ),
        instruction(
            "only where it works: `options nvidia NVreg_GrdmaPciTopoCheckOverride=1` (modprobe.d), "
            "rebuild the initramfs, reboot"
        ),
    )
    return _refused(
        examination,
        "PCI topology not supported",
        "between this GPU and this NIC lies a chipset that NVIDIA holds unable to carry peer-to-peer "
        "traffic, and no common switch",
        Plan("Pair GPUs and NICs below one switch", steps, disturbs="jobs have to be restarted"),
    )


@AREA.check(
    "p2p-topology-refused-force-pcie",
    Severity.CRITICAL,
    "the driver refused a NIC the PCIe path to GPU memory: they are in different IOMMU groups",
    f"{_SOURCE}nv-dmabuf.c, FORCE_PCIE; rdma_topo(8) of rdma-core",
)
def p2p_topology_refused_force_pcie(examination: Examination) -> Outcome:
    """`mapping type FORCE_PCIE` in the kernel log: Grace with NICs at the GPU's own switch."""
    steps = (
        Step("says which ACS settings the paths need", ("rdma_topo", "check")),
        instruction("set ACS as it says (firmware, or pci=config_acs= on the command line), then reboot"),
    )
    return _refused(
        examination,
        "FORCE_PCIE",
        "the direct PCIe path of Grace needs GPU and NIC in one IOMMU group, which the ACS settings decide",
        Plan("Set ACS as rdma_topo asks", steps, needs_reboot=True, disturbs=REBOOT_ENDS_JOBS),
    )


@AREA.check(
    "p2p-topology-refused-old-importer",
    Severity.CRITICAL,
    "the NIC's driver cannot take GPU memory that has no struct page",
    f"{_SOURCE}nv-dmabuf.c, importer unable to handle MMIO",
)
def p2p_topology_refused_old_importer(examination: Examination) -> Outcome:
    """`importer unable to handle MMIO` in the kernel log."""
    steps = (instruction("update the NIC's driver: a newer kernel, or a current OFED"),)
    return _refused(
        examination,
        "importer unable to handle MMIO",
        "the NIC's driver attached to the DMA-BUF without the ability to do peer-to-peer",
        Plan("Update the NIC's driver", steps, disturbs="every RDMA program"),
    )


def _numbers(version: Maybe[str]) -> tuple[int, ...] | None:
    if isinstance(version, Unknown):
        return None
    parts = version.split(".")
    return tuple(int(part) for part in parts[:3]) if all(part.isdecimal() for part in parts) else None


@AREA.check(
    "memory-peers-missing-old-nccl",
    Severity.CRITICAL,
    "NCCL before 2.23.4 does not see nvidia_peermem on this kernel, and copies through host memory",
    "https://github.com/NVIDIA/nccl/issues/1676; NCCL release notes 2.23.4",
)
def memory_peers_missing_old_nccl(examination: Examination) -> Outcome:
    """Old NCCL, no /sys/kernel/mm/memory_peers, no DMA-BUF. The missing directory alone is no fault."""
    module = loaded_peermem(examination)
    if isinstance(module, Outcome):
        return module
    direct, peers = examination.node.gpudirect, examination.reading.peermem.peers
    if not isinstance(peers, Unknown):
        return passed(Evidence(_MEMORY_PEERS, "there"))
    if peers.reason is not Reason.NOT_THERE:
        return unsure(f"{_MEMORY_PEERS}: {peers}")
    if isinstance(direct, Unknown):
        return unsure(f"whether DMA-BUF can be used is unknown: {direct}")
    absent = Evidence(_MEMORY_PEERS, "not there: as it should be on newer kernels")
    if isinstance(direct.dmabuf.usable, Unknown):
        return unsure(f"whether DMA-BUF can be used is unknown: {direct.dmabuf.usable}", absent)
    if direct.dmabuf.usable:
        return passed(absent, Evidence("DMA-BUF", "can be used: NCCL does not look for nvidia_peermem"))
    old, hidden = _old_nccl(examination)
    if old:
        steps = (
            instruction(
                "take NCCL 2.23.4 or newer into the jobs' image (or LD_LIBRARY_PATH), and restart them"
            ),
            instruction("or install the open kernel modules: NCCL then goes by DMA-BUF"),
        )
        return found(
            "this kernel has no memory_peers, and this NCCL looks nowhere else: "
            "it prints `GPU Direct RDMA Disabled`",
            absent,
            *old[:SHOWN],
            fix=Plan("Update NCCL", steps, disturbs="jobs have to be restarted"),
            devices=(PEERMEM,),
        )
    return unsure("needs root: the libraries of other users' processes", absent) if hidden else passed(absent)


def _old_nccl(examination: Examination) -> tuple[list[Evidence], bool]:
    """Where an old NCCL was seen, and whether processes could not be looked into."""
    libraries, processes = examination.libraries, examination.processes
    old = []
    if not isinstance(libraries, Unknown):
        for library in libraries.found.get("libnccl.so.2", ()):
            numbers = _numbers(library.version)
            if numbers is not None and numbers < _FIRST_NCCL:
                old.append(Evidence(library.path, f"NCCL {library.version}"))
    if isinstance(processes, Unknown):
        return old, processes.reason is not Reason.NOT_THERE
    hidden = isinstance(processes.hidden, Unknown) or processes.hidden > 0
    for process in processes.processes:
        if isinstance(process.libraries, Unknown):
            hidden = True
            continue
        for mapped in process.libraries:
            numbers = _numbers(mapped.version)
            if mapped.name == "libnccl" and numbers is not None and numbers < _FIRST_NCCL:
                old.append(Evidence(f"/proc/{process.pid}/maps", f"NCCL {mapped.version}"))
    return old, hidden
