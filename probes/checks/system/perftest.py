"""Checks of perftest, which measures GPUDirect RDMA."""

from __future__ import annotations

from probes.base.evidence import Evidence, Severity
from probes.base.plan import Step, instruction, make_plan
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.facts.system.tools import PERFTEST_BUILD, Perftest
from probes.plans.packages import is_immutable, perftest_steps
from probes.queries.finding import Area, Outcome, found, need, passed
from probes.queries.jobs import usable_paths
from probes.queries.modules import no_gpu_or_rdma_device
from probes.snapshot.examination import Examination

AREA = Area("tools", requires=(no_gpu_or_rdma_device,))
LIBRARIES = "the installed libraries"
_PERFTEST = "https://github.com/linux-rdma/perftest"
_BUILD = make_plan(
    "Build perftest with CUDA",
    "Install the CUDA toolkit and the headers of rdma-core (libibverbs-dev, librdmacm-dev, …)",
    Step("Download the source", ("git", "clone", f"{_PERFTEST}.git"), needs_root=False),
    instruction("In the perftest directory, run", to_copy=PERFTEST_BUILD),
    note="DOCA, HPC-X and NVIDIA's containers include a perftest built with CUDA.",
)
_IN_CONTAINER = make_plan(
    "Run perftest in a container",
    "Run perftest in a container: no package can be installed on this system.",
    needs_root=False,
    note=_BUILD.note,
)


def _perftest(examination: Examination) -> Maybe[Perftest]:
    return map_known(examination.tools, lambda tools: tools.perftest)


def _need_perftest(examination: Examination) -> Perftest:
    """Return the installed perftest; end the check without one, which perftest-missing reports."""
    absent = Evidence("command -v ib_write_bw", "not installed")
    return need(_perftest(examination), "perftest", absent=absent)


@AREA.check(
    "perftest-missing",
    Severity.NOTE,
    "perftest is not installed",
    _PERFTEST,
    ok="perftest is installed",
    impact="You cannot measure the bandwidth between NICs and GPUs here.",
)
def perftest_missing(examination: Examination) -> Outcome:
    """Look for ib_write_bw and the other programs of perftest."""
    perftest = _perftest(examination)
    if not isinstance(perftest, Unknown):
        return passed(Evidence(perftest.evidence, ", ".join(perftest.installed)))
    if perftest.reason is not Reason.NOT_THERE:
        need(perftest, "perftest")
    packages = perftest_steps(examination)
    otherwise = _IN_CONTAINER if is_immutable(examination) else _BUILD
    return found(
        "A test of GPU memory proves that GPUDirect RDMA works. Distributions ship perftest without CUDA.",
        Evidence("command -v ib_write_bw", "not found"),
        fix=make_plan("Install perftest", *packages) if packages else otherwise,
    )


@AREA.check(
    "perftest-without-cuda",
    Severity.WARNING,
    "perftest is built without CUDA",
    _PERFTEST,
    ok="perftest is built with CUDA, or is not installed",
    impact="perftest refuses --use_cuda. Old versions ignore it and measure host memory.",
)
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


@AREA.check(
    "perftest-without-dmabuf",
    Severity.NOTE,
    "perftest is built without DMA-BUF",
    _PERFTEST,
    ok="perftest is built with DMA-BUF, or without CUDA",
    impact="A test with --use_cuda measures nvidia-peermem only.",
)
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


@AREA.check(
    "libcuda-link-missing",
    Severity.WARNING,
    "The libcuda.so link is missing",
    f"{_PERFTEST}, src/cuda_loader.c",
    ok="perftest finds libcuda",
    impact="perftest stops with “Failed to load CUDA library dynamically”.",
)
def libcuda_link_missing(examination: Examination) -> Outcome:
    """Look for the link that development packages bring and perftest of 2025 and later opens."""
    perftest = _need_perftest(examination)
    libraries = need(examination.libraries, LIBRARIES)
    if not need(perftest.opens_libcuda, "perftest"):
        return passed(Evidence(perftest.evidence, "does not open libcuda.so"))
    driver = need(libraries.installed("libcuda.so.1"), LIBRARIES)
    if not driver or need(libraries.installed("libcuda.so"), LIBRARIES):
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


@AREA.check(
    "perftest-port-in-use",
    Severity.NOTE,
    "perftest's port 18515 is in use",
    f"{_PERFTEST}, README",
    ok="perftest's port 18515 is free",
    impact="A new perftest server stops with “Couldn't listen to port 18515”.",
)
def perftest_port_in_use(examination: Examination) -> Outcome:
    """Look for TCP sockets that listen on port 18515."""
    tools = need(examination.tools, "the installed tools")
    socket_file = need(tools.perftest_listens, "/proc/net/tcp")
    if socket_file is None:
        return passed(Evidence("/proc/net/tcp", "nothing listens on 18515"))
    return found(
        "A perftest server is waiting for a client, or was left over from an earlier test.",
        Evidence(socket_file, "a socket listens on port 18515 (hex 4853)"),
        fix=make_plan(
            "Use another port",
            Step("Show the process", ("ss", "--listening", "--tcp", "--processes", "sport", "=", ":18515")),
            "Run both sides with --port=18516 (the running test may be another user's)",
            needs_root=False,
        ),
    )
