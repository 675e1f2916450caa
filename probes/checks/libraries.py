"""The libraries of RDMA that programs load, and GDRCopy."""

from __future__ import annotations

import re

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.jobs import jobs_of, settle
from probes.checks.nccl_library import usable
from probes.checks.wording import few
from probes.examination import Examination
from probes.libraries import DIRECTORIES, InstalledLibrary
from probes.modules import ModuleState
from probes.plan import Plan, Step, instruction
from probes.unknown import Reason, Unknown

AREA = Area("tools")
_GDRCOPY = "https://github.com/NVIDIA/gdrcopy"
_VERBS = "ibv_reg_dmabuf_mr(3), rdma-core; libibverbs/libibverbs.map.in, IBVERBS_1.12"
_FIRST_ABI_WITH_DMABUF = (1, 12)
_GDRDRV = "/dev/gdrdrv"


def _abi(library: InstalledLibrary) -> tuple[int, ...] | None:
    """The numbers of libibverbs.so.1.14.39.0; the second rises with each function that is added."""
    if isinstance(library.version, Unknown):
        return None
    return tuple(int(part) for part in re.findall(r"[0-9]{1,6}", library.version))


@AREA.check(
    "rdma-core-without-dmabuf",
    Severity.WARNING,
    "libibverbs of this node is older than DMA-BUF",
    _VERBS,
)
def rdma_core_without_dmabuf(examination: Examination) -> Outcome:
    """The version of libibverbs.so.1 against 1.12 (rdma-core 34), the first with ibv_reg_dmabuf_mr."""
    libraries = examination.libraries
    if isinstance(libraries, Unknown):
        return unsure(f"the libraries: {libraries}")
    here = libraries.found["libibverbs.so.1"]
    if not here:
        return passed(Evidence(DIRECTORIES[0], "no libibverbs here"))
    versions = [(library, _abi(library)) for library in here]
    old = [library for library, abi in versions if abi is not None and abi < _FIRST_ABI_WITH_DMABUF]
    if old:
        return found(
            "programs that load it cannot register GPU memory by DMA-BUF; NCCL says “Operation not"
            " supported”",
            *few(Evidence(library.path, "before IBVERBS_1.12") for library in old),
            fix=Plan(
                "Update rdma-core", (instruction("rdma-core 34 or later, or OFED/DOCA of 2022 or later"),)
            ),
        )
    if any(abi is None for _, abi in versions):
        return unsure(f"the version of {here[0].path}, which its name does not tell")
    return passed(*few(Evidence(library.path, "has ibv_reg_dmabuf_mr") for library in here))


@AREA.check(
    "old-userspace-abi",
    Severity.WARNING,
    "a job brings a libibverbs that is older than DMA-BUF",
    _VERBS,
)
def old_userspace_abi(examination: Examination) -> Outcome:
    """Libibverbs as jobs map it, often from an image; critical where DMA-BUF is the only way."""
    jobs = jobs_of(examination)
    evidence = []
    untold = ""
    for process in jobs.processes:
        for library in () if isinstance(process.libraries, Unknown) else process.libraries:
            if library.name != "libibverbs":
                continue
            abi = _abi(InstalledLibrary(library.name, library.path, library.version))
            if abi is None or len(abi) < 2:
                untold = (
                    f"the version of {library.path} of process {process.pid}, which its name does not tell"
                )
            elif abi < _FIRST_ABI_WITH_DMABUF:
                evidence.append(Evidence(f"/proc/{process.pid}/maps", library.path))
    dmabuf, peermem = usable(examination)
    if not evidence and untold:
        return unsure(untold)
    return settle(
        jobs,
        evidence,
        "the job cannot register GPU memory by DMA-BUF; a very old one sees no device at all",
        fix=Plan(
            "Update rdma-core in the image",
            (instruction("rdma-core 34 or later in the image; then restart the job", needs_root=False),),
            disturbs="the job has to be restarted",
        ),
        severity=Severity.CRITICAL if dmabuf is True and peermem is False else None,
    )


@AREA.check(
    "libibverbs-missing",
    Severity.NOTE,
    "libibverbs or its part for ConnectX is not in the usual places",
    "rdma-core, https://github.com/linux-rdma/rdma-core",
)
def libibverbs_missing(examination: Examination) -> Outcome:
    """libibverbs.so.1 and libmlx5.so.1; containers bring their own, and ld.so.conf may name other places."""
    libraries, rdma = examination.libraries, examination.node.rdma
    if isinstance(libraries, Unknown):
        return unsure(f"the libraries: {libraries}")
    if isinstance(rdma, Unknown):
        if rdma.reason is not Reason.NOT_THERE:
            return unsure(f"the RDMA devices: {rdma}")
        return passed(Evidence("/sys/class/infiniband", "no RDMA device here"))
    mellanox = any(device.driver == "mlx5_core" for device in rdma.devices)
    wanted = ["libibverbs.so.1", *(["libmlx5.so.1"] if mellanox else [])]
    gone = [soname for soname in wanted if not libraries.found[soname]]
    if not gone or not rdma.devices:
        return passed(*few(Evidence(one.path, "there") for name in wanted for one in libraries.found[name]))
    return found(
        "programs that run here and not in a container find no RDMA device and use TCP",
        *(
            Evidence(f"/usr/lib/*/{soname}", "not there, nor in the loader's other usual places")
            for soname in gone
        ),
        fix=Plan(
            "Install rdma-core",
            (
                instruction(
                    "Debian, Ubuntu: libibverbs1 and ibverbs-providers; others: libibverbs; or OFED/DOCA"
                ),
            ),
        ),
    )


@AREA.check(
    "gdrdrv-missing",
    Severity.NOTE,
    "GDRCopy's library is installed and its driver gdrdrv is not loaded",
    _GDRCOPY,
)
def gdrdrv_missing(examination: Examination) -> Outcome:
    """The gdrdrv module; CPU copies to GPU memory need it, GPUDirect RDMA does not."""
    libraries, modules = examination.libraries, examination.node.modules
    if isinstance(libraries, Unknown) or isinstance(modules, Unknown):
        return unsure(f"libraries and modules: {libraries if isinstance(libraries, Unknown) else modules}")
    here = libraries.found["libgdrapi.so.2"]
    if not here:
        return passed(Evidence("libgdrapi.so.2", "not installed: nothing here needs gdrdrv"))
    state = modules.modules["gdrdrv"].state
    if isinstance(state, Unknown):
        return unsure(f"whether gdrdrv is loaded: {state}")
    if state is ModuleState.LIVE:
        return passed(Evidence("/sys/module/gdrdrv/initstate", "live"))
    return found(
        "programs say “gdr_open error: Is gdrdrv driver installed and loaded?” and copy small messages more"
        " slowly; the NICs' way to GPU memory is not touched",
        Evidence("/sys/module/gdrdrv/initstate", state.value),
        Evidence(here[0].path, "installed"),
        fix=Plan(
            "Load gdrdrv",
            (
                Step(
                    "loads the module; its package's udev rule makes /dev/gdrdrv",
                    ("modprobe", "gdrdrv"),
                    undo=("modprobe", "-r", "gdrdrv"),
                ),
            ),
        ),
        devices=("gdrdrv",),
    )


@AREA.check(
    "gdrdrv-device-missing",
    Severity.NOTE,
    "gdrdrv is loaded and /dev/gdrdrv cannot be used",
    _GDRCOPY,
)
def gdrdrv_device_missing(examination: Examination) -> Outcome:
    """The device file of a loaded gdrdrv."""
    nodes, modules = examination.device_nodes, examination.node.modules
    if isinstance(nodes, Unknown) or isinstance(modules, Unknown):
        return unsure(f"device files and modules: {nodes if isinstance(nodes, Unknown) else modules}")
    state = modules.modules["gdrdrv"].state
    if isinstance(state, Unknown):
        if state.reason is Reason.NOT_THERE:
            return passed(Evidence("/proc/modules", "not there: no module is loaded"))
        return unsure(f"whether gdrdrv is loaded: {state}")
    if state is not ModuleState.LIVE:
        return passed(Evidence("/sys/module/gdrdrv/initstate", state.value))
    if isinstance(nodes.gpu, Unknown):
        return unsure(f"{nodes.gpu.reason.value}: /dev")
    node = next((one for one in nodes.gpu if one.path == _GDRDRV), None)
    if node is not None and isinstance(node.usable, Unknown):
        return unsure(f"whether {_GDRDRV} may be opened: {node.usable}")
    if node is not None and node.usable:
        return passed(Evidence(_GDRDRV, "there"))
    return found(
        "GDRCopy does not work; the NICs' way to GPU memory is not touched",
        Evidence(_GDRDRV, "not there" if node is None else "not to be read and written by this user"),
        fix=Plan(
            "Pass or make the device file",
            (
                instruction("container: --device=/dev/gdrdrv", needs_root=False),
                instruction(
                    "host: install GDRCopy's package of gdrdrv, whose udev rule makes it with mode 0666"
                ),
            ),
        ),
        devices=("gdrdrv",),
    )
