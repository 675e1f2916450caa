"""Checks of the RDMA libraries that programs load, and of GDRCopy."""

from __future__ import annotations

from probes.base.evidence import Evidence, Severity, first_distinct
from probes.base.plan import instruction, make_plan
from probes.base.text import version_numbers
from probes.base.unknown import Unknown, known
from probes.checks.nccl.library import needs_version
from probes.checks.system.perftest import LIBRARIES
from probes.facts.kernel.modules import ModuleState
from probes.facts.pci.nic_families import PROVIDER_OF
from probes.facts.system.platform import in_container
from probes.facts.system.tools import LIBRARY_DIRECTORIES, InstalledLibrary
from probes.plans.common import modprobe_step
from probes.plans.packages import verbs_steps
from probes.queries.finding import RDMA_DEVICES, Area, Outcome, found, need, passed, unknown
from probes.queries.jobs import OVER_TCP, conclude, job_plan, jobs_of, usable_paths
from probes.queries.modules import MODULES
from probes.snapshot.examination import Examination

AREA = Area("tools")
_GDRCOPY = "https://github.com/NVIDIA/gdrcopy"
_VERBS = "ibv_reg_dmabuf_mr(3), rdma-core; libibverbs/libibverbs.map.in, IBVERBS_1.12"
_FIRST_ABI_WITH_DMABUF = (1, 12)
_GDRDRV = "/dev/gdrdrv"


def _installed(examination: Examination, soname: str) -> tuple[InstalledLibrary, ...]:
    return need(need(examination.libraries, LIBRARIES).installed(soname), LIBRARIES)


def _abi(library: InstalledLibrary) -> tuple[int, ...] | None:
    """Return the version of libibverbs.so.1.14.39.0; its second number rises with each new function."""
    if isinstance(library.version, Unknown):
        return None
    return version_numbers(library.version)


@AREA.check(
    "rdma-core-without-dmabuf",
    Severity.WARNING,
    "This node's libibverbs is too old for DMA-BUF",
    _VERBS,
    ok="libibverbs supports DMA-BUF",
    impact="Programs that load it cannot use DMA-BUF. NCCL reports “Operation not supported”.",
)
def rdma_core_without_dmabuf(examination: Examination) -> Outcome:
    """Compare libibverbs.so.1 with version 1.12 (rdma-core 34), the first with ibv_reg_dmabuf_mr."""
    here = _installed(examination, "libibverbs.so.1")
    if not here:
        return passed(Evidence(LIBRARY_DIRECTORIES[0], "no libibverbs"))
    versions = [(library, _abi(library)) for library in here]
    old = [library for library, abi in versions if abi is not None and abi < _FIRST_ABI_WITH_DMABUF]
    if old:
        paths = {library.path for library in old}
        mapped = {
            library.path
            for process in jobs_of(examination).processes
            for library in known(process.libraries, ())
            if library.path in paths
        }
        return found(
            "ibv_reg_dmabuf_mr came with IBVERBS_1.12 (rdma-core 34).",
            *first_distinct(Evidence(library.path, "before IBVERBS_1.12") for library in old),
            part_of=("old-userspace-abi",) if mapped else (),
            fix=make_plan(
                "Update rdma-core", "Install rdma-core 34 or later, or OFED/DOCA from 2022 or later"
            ),
        )
    if any(abi is None for _, abi in versions):
        return unknown(needs_version(here[0].path))
    return passed(*first_distinct(Evidence(library.path, "has ibv_reg_dmabuf_mr") for library in here))


@AREA.check(
    "old-userspace-abi",
    Severity.WARNING,
    "A job's libibverbs is too old for DMA-BUF",
    _VERBS,
    ok="Every job's libibverbs supports DMA-BUF",
    impact="The job cannot use DMA-BUF. With a very old libibverbs it finds no RDMA device.",
    data_path=True,
)
def old_userspace_abi(examination: Examination) -> Outcome:
    """Read the libibverbs that jobs map, often from an image; critical if DMA-BUF is the only path."""
    jobs = jobs_of(examination)
    evidence = []
    missing = ""
    for process in jobs.processes:
        for library in known(process.libraries, ()):
            if library.name != "libibverbs":
                continue
            abi = _abi(InstalledLibrary(library.path, library.version))
            if abi is None or len(abi) < 2:
                missing = needs_version(library.path)
            elif abi < _FIRST_ABI_WITH_DMABUF:
                evidence.append(Evidence(f"/proc/{process.pid}/maps", library.path))
    dmabuf, peermem = usable_paths(examination)
    if not evidence and missing:
        return unknown(missing)
    return conclude(
        jobs,
        evidence,
        "ibv_reg_dmabuf_mr came with IBVERBS_1.12 (rdma-core 34).",
        fix=job_plan("Update rdma-core in the image", "Install rdma-core 34 or later in the image"),
        severity=Severity.CRITICAL if dmabuf is True and peermem is False else None,
    )


@AREA.check(
    "libibverbs-missing",
    Severity.NOTE,
    "libibverbs or its provider for these NICs is not installed",
    "rdma-core, https://github.com/linux-rdma/rdma-core",
    ok="libibverbs and its provider are installed",
    impact=f"Programs outside containers find no RDMA device. {OVER_TCP}",
)
def libibverbs_missing(examination: Examination) -> Outcome:
    """Look for libibverbs.so.1 and the plugin of each driver; containers bring their own.

    Slingshot NICs have no verbs: programs use libfabric.
    """
    no_rdma = Evidence("/sys/class/infiniband", "no RDMA device with verbs")
    devices = need(examination.node.rdma, RDMA_DEVICES, absent=no_rdma).devices
    drivers = {known(device.driver, "") for device in devices} - {"cxi_ss1"}
    if devices and not drivers:
        return passed(no_rdma)
    wanted = ["libibverbs.so.1", *(["libmlx5.so.1"] if "mlx5_core" in drivers else [])]
    missing = [soname for soname in wanted if not _installed(examination, soname)] if devices else []
    plugins = need(examination.libraries, LIBRARIES).verbs_providers
    for driver, plugin in PROVIDER_OF.items() if not isinstance(plugins, Unknown) else ():
        if driver in drivers and not any(name.startswith(f"lib{plugin}-") for name in known(plugins, ())):
            missing.append(f"libibverbs/lib{plugin}-rdmav*.so")
    inside = in_container(examination.node.platform)
    if not missing or not devices:
        files = (file for soname in wanted for file in _installed(examination, soname)) if devices else ()
        return passed(*first_distinct(Evidence(file.path, "there") for file in files))
    return found(
        "It is not in the loader's default directories. ld.so.conf may add others.",
        *(
            Evidence(f"/usr/lib/*/{soname}", "not found, nor in the loader's other default directories")
            for soname in missing
        ),
        fix=make_plan(
            "Install rdma-core",
            *verbs_steps(examination),
        ),
        severity=Severity.CRITICAL if inside else None,
        impact=f"Programs in this container find no RDMA device. {OVER_TCP}" if inside else "",
        data_path=inside,
        takes=examination.usability.gpus if inside else (),
    )


@AREA.check(
    "gdrdrv-missing",
    Severity.NOTE,
    "GDRCopy is installed, but its driver gdrdrv is not loaded",
    _GDRCOPY,
    ok="gdrdrv is loaded, or GDRCopy is not installed",
    impact="Programs copy small messages more slowly. GPUDirect RDMA is not affected.",
)
def gdrdrv_missing(examination: Examination) -> Outcome:
    """Look for the gdrdrv module, which CPU copies to GPU memory need and GPUDirect RDMA does not."""
    here = _installed(examination, "libgdrapi.so.2")
    modules = need(examination.node.modules, MODULES).modules
    if not here:
        return passed(Evidence("libgdrapi.so.2", "not installed"))
    state = need(modules["gdrdrv"].state, MODULES)
    if state is ModuleState.LIVE:
        return passed(Evidence("/sys/module/gdrdrv/initstate", "live"))
    load = modprobe_step("Load the module; its package's udev rule creates /dev/gdrdrv", "gdrdrv")
    return found(
        "Programs print “gdr_open error: Is gdrdrv driver installed and loaded?”.",
        Evidence("/sys/module/gdrdrv/initstate", state.value),
        Evidence(here[0].path, "installed"),
        fix=make_plan("Load gdrdrv", load),
        devices=("gdrdrv",),
    )


@AREA.check(
    "gdrdrv-device-missing",
    Severity.NOTE,
    "gdrdrv is loaded, but /dev/gdrdrv is not usable",
    _GDRCOPY,
    ok="/dev/gdrdrv is usable, or gdrdrv is not loaded",
    impact="GDRCopy does not work. GPUDirect RDMA is not affected.",
)
def gdrdrv_device_missing(examination: Examination) -> Outcome:
    """Look for the device file of a loaded gdrdrv."""
    nodes = need(examination.device_nodes, "/dev")
    gdrdrv = need(examination.node.modules, MODULES).modules["gdrdrv"]
    state = need(gdrdrv.state, MODULES, absent=Evidence("/proc/modules", "not found"))
    if state is not ModuleState.LIVE:
        return passed(Evidence("/sys/module/gdrdrv/initstate", state.value))
    node = next((file for file in need(nodes.gpu, "/dev") if file.path == _GDRDRV), None)
    if node is not None and need(node.usable, f"the mode of {_GDRDRV}"):
        return passed(Evidence(_GDRDRV, "there"))
    return found(
        "The udev rule in GDRCopy's package creates the file with mode 0666."
        if node is None
        else "The file's mode denies this user access.",
        Evidence(_GDRDRV, "not found" if node is None else "not readable and writable by this user"),
        fix=make_plan(
            "Provide the device file",
            instruction("Container: add --device=/dev/gdrdrv", needs_root=False),
            "Host: install GDRCopy's gdrdrv package, which includes the udev rule",
        ),
        devices=("gdrdrv",),
    )
