"""Checks of perftest, the RDMA libraries that programs load, and GDRCopy."""

from __future__ import annotations

from probes.base.evidence import Evidence, Severity, first_distinct
from probes.base.plan import Step, instruction, make_plan, user_plan
from probes.base.text import version_numbers
from probes.base.unknown import Maybe, Unknown, first_unread, known, map_known
from probes.checks.nccl.library import needs_version, newer
from probes.facts.kernel.modules import ModuleState
from probes.facts.pci.nic_families import LADDER_DRIVERS, PROVIDER_OF
from probes.facts.system.platform import in_container
from probes.facts.system.tools import LIBRARY_DIRECTORIES, PERFTEST_BUILD, InstalledLibrary, Perftest
from probes.plans.common import modprobe_step
from probes.plans.packages import is_immutable, perftest_steps, verbs_steps
from probes.queries.finding import RDMA_DEVICES, Area, Outcome, found, need, passed, unknown
from probes.queries.jobs import OVER_TCP, conclude, job_plan, jobs_of, usable_paths
from probes.queries.modules import MODULES, impossible_by_design, no_gpu_or_rdma_device
from probes.snapshot.examination import Examination

AREA = Area("tools", __package__, requires=(no_gpu_or_rdma_device,))
_LIBRARIES = "the installed libraries"
_PERFTEST = "https://github.com/linux-rdma/perftest"
_BUILD = make_plan(
    "Build perftest with CUDA",
    "Install the CUDA toolkit and the headers of rdma-core (libibverbs-dev, librdmacm-dev, …)",
    Step("Download the source", ("git", "clone", f"{_PERFTEST}.git"), needs_root=False),
    instruction("In the perftest directory, run", to_copy=PERFTEST_BUILD),
    note="DOCA, HPC-X and NVIDIA's containers include a perftest built with CUDA.",
)
_IN_CONTAINER = user_plan(
    "Run perftest in a container",
    "Run perftest in a container: no package can be installed on this system.",
    note=_BUILD.note,
)


def _perftest(examination: Examination) -> Maybe[Perftest]:
    return map_known(examination.tools, lambda tools: tools.perftest)


def _need_perftest(examination: Examination) -> Perftest:
    """Return the installed perftest; end the check without one, which perftest-missing reports."""
    absent = Evidence("command -v ib_write_bw", "not installed")
    return need(_perftest(examination), "perftest", absent=absent)


@AREA.note("perftest-missing")
def perftest_missing(examination: Examination) -> Outcome:
    """Look for ib_write_bw and the other programs of perftest."""
    perftest = _perftest(examination)
    if not isinstance(perftest, Unknown):
        return passed(Evidence(perftest.evidence, ", ".join(perftest.installed)))
    need(first_unread((perftest,)), "perftest")
    packages = perftest_steps(examination)
    otherwise = _IN_CONTAINER if is_immutable(examination) else _BUILD
    return found(
        "A test of GPU memory proves that GPUDirect RDMA works. Distributions ship perftest without CUDA.",
        Evidence("command -v ib_write_bw", "not found"),
        fix=make_plan("Install perftest", *packages) if packages else otherwise,
    )


@AREA.warning("perftest-without-cuda", requires=(no_gpu_or_rdma_device, impossible_by_design))
def perftest_without_cuda(examination: Examination) -> Outcome:
    """Search the program for libcuda."""
    perftest = _need_perftest(examination)
    if need(perftest.cuda, "perftest"):
        return passed(Evidence(perftest.evidence, "built with CUDA"))
    return found(
        "Distribution packages are built without CUDA.",
        Evidence(perftest.evidence, "does not contain libcuda"),
        fix=_BUILD,
    )


@AREA.note("perftest-without-dmabuf", requires=(no_gpu_or_rdma_device, impossible_by_design))
def perftest_without_dmabuf(examination: Examination) -> Outcome:
    """Search the program for --use_cuda_dmabuf; a warning if DMA-BUF is the only path."""
    perftest = _need_perftest(examination)
    with_cuda = need(perftest.cuda, "perftest")
    with_dmabuf = need(perftest.dmabuf, "perftest")
    if not with_cuda or with_dmabuf:  # perftest-without-cuda reports the first
        build = "built with DMA-BUF" if with_dmabuf else "built without CUDA"
        return passed(Evidence(perftest.evidence, build))
    dmabuf, peermem = usable_paths(examination)
    only = dmabuf is True and peermem is False
    fails = "A test with --use_cuda fails with errno 14, because nvidia-peermem is not usable here."
    return found(
        "This perftest has no --use_cuda_dmabuf option.",
        Evidence(perftest.evidence, "does not contain cuMemGetHandleForAddressRange"),
        fix=_BUILD,
        severity=Severity.WARNING if only else None,
        impact=fails if only else "",
    )


@AREA.warning("libcuda-link-missing", requires=(no_gpu_or_rdma_device, impossible_by_design))
def libcuda_link_missing(examination: Examination) -> Outcome:
    """Look for the link that development packages bring and perftest of 2025 and later opens."""
    perftest = _need_perftest(examination)
    libraries = need(examination.libraries, _LIBRARIES)
    if not need(perftest.opens_libcuda, "perftest"):
        return passed(Evidence(perftest.evidence, "does not open libcuda.so"))
    driver = need(libraries.installed("libcuda.so.1"), _LIBRARIES)
    if not driver or need(libraries.installed("libcuda.so"), _LIBRARIES):
        return passed(Evidence("libcuda.so", "found" if driver else "no CUDA driver library"))
    place = driver[0].path.rpartition("/")[0]
    return found(
        "perftest opens libcuda.so, and only libcuda.so.1 is installed.",
        Evidence(f"{place}/libcuda.so", "not found"),
        Evidence(f"{place}/libcuda.so.1", driver[0].path),
        fix=make_plan(
            "Create the link",
            Step(
                "Create the link, as the driver's development package does",
                ("ln", "-s", "libcuda.so.1", f"{place}/libcuda.so"),
                undo=("rm", f"{place}/libcuda.so"),
            ),
        ),
    )


@AREA.note("perftest-port-in-use")
def perftest_port_in_use(examination: Examination) -> Outcome:
    """Look for TCP sockets that listen on port 18515."""
    socket_file = need(need(examination.tools, "the installed tools").perftest_listens, "/proc/net/tcp")
    if socket_file is None:
        return passed(Evidence("/proc/net/tcp", "nothing listens on 18515"))
    return found(
        "A perftest server is waiting for a client, or was left over from an earlier test.",
        Evidence(socket_file, "a socket listens on port 18515 (hex 4853)"),
    )


# The RDMA libraries that programs load, and GDRCopy.

LIBRARY_AREA = Area("tools", __package__)
_FIRST_ABI_WITH_DMABUF = (1, 12)
_GDRDRV = "/dev/gdrdrv"


def _installed(examination: Examination, soname: str) -> tuple[InstalledLibrary, ...]:
    return need(need(examination.libraries, _LIBRARIES).installed(soname), _LIBRARIES)


def _abi(library: InstalledLibrary) -> tuple[int, ...] | None:
    """Return the version of libibverbs.so.1.14.39.0; its second number rises with each new function."""
    return known(map_known(library.version, version_numbers), None)


@LIBRARY_AREA.warning("rdma-core-without-dmabuf", requires=(impossible_by_design,))
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
        )
    if any(abi is None for _, abi in versions):
        return unknown(needs_version(here[0].path))
    return passed(*first_distinct(Evidence(library.path, "has ibv_reg_dmabuf_mr") for library in here))


@LIBRARY_AREA.warning("old-userspace-abi", data_path=True, requires=(impossible_by_design,))
def old_userspace_abi(examination: Examination) -> Outcome:
    """Read the libibverbs that jobs map, often from an image; critical if DMA-BUF is the only path."""
    jobs = jobs_of(examination)
    evidence, old = [], []
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
                old.append(library)
    dmabuf, peermem = usable_paths(examination)
    if not evidence and missing:
        return unknown(missing)
    return conclude(
        jobs,
        evidence,
        "ibv_reg_dmabuf_mr came with IBVERBS_1.12 (rdma-core 34).",
        fix=job_plan("Update rdma-core", *newer(old, "rdma-core", "34")),
        severity=Severity.CRITICAL if dmabuf is True and peermem is False else None,
    )


@LIBRARY_AREA.note("libibverbs-missing")
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
    plugins = need(examination.libraries, _LIBRARIES).verbs_providers
    absent = [
        driver
        for driver, plugin in (PROVIDER_OF.items() if not isinstance(plugins, Unknown) else ())
        if driver in drivers and not any(name.startswith(f"lib{plugin}-") for name in known(plugins, ()))
    ]
    # Vendors install their own elsewhere, too: Broadcom's is in /usr/local/lib, by a line in ld.so.conf.
    is_sure = bool(missing) or not set(LADDER_DRIVERS).isdisjoint(absent)
    missing += [f"libibverbs/lib{PROVIDER_OF[driver]}-rdmav*.so" for driver in absent]
    inside = is_sure and in_container(examination.node.platform)
    if not missing or not devices:
        files = (file for soname in wanted for file in _installed(examination, soname)) if devices else ()
        return passed(*first_distinct(Evidence(file.path, "there") for file in files))
    return found(
        "It is not in the loader's default directories. ld.so.conf may add others.",
        *(
            Evidence(f"/usr/lib/*/{soname}", "not found, nor in the loader's other default directories")
            for soname in missing
        ),
        fix=make_plan("Install rdma-core", *verbs_steps(examination)),
        severity=Severity.CRITICAL if inside else None,
        impact=f"Programs in this container find no RDMA device. {OVER_TCP}" if inside else "",
        data_path=inside,
        takes=examination.usability.gpus if inside else (),
    )


@LIBRARY_AREA.note("gdrdrv-missing", requires=(impossible_by_design,))
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


@LIBRARY_AREA.note("gdrdrv-device-missing", requires=(impossible_by_design,))
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
        devices=("gdrdrv",),
    )
