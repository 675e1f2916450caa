"""Perftest, which measures GPUDirect RDMA."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.nccl_library import usable
from probes.examination import Examination
from probes.plan import Plan, Step, instruction
from probes.tools import PERFTEST_BUILD, Perftest
from probes.unknown import Maybe, Reason, Unknown

AREA = Area("tools")
_PERFTEST = "https://github.com/linux-rdma/perftest"
_BUILD = Plan(
    "Build perftest with CUDA",
    (
        instruction(
            "install the CUDA toolkit and the headers of rdma-core (libibverbs-dev, librdmacm-dev, …)"
        ),
        Step("takes the source", ("git", "clone", f"{_PERFTEST}.git"), needs_root=False),
        instruction(f"in it: {PERFTEST_BUILD}"),
    ),
    note="the perftest of DOCA, HPC-X and of NVIDIA's containers is built with CUDA already",
)


def _perftest(examination: Examination) -> Maybe[Perftest]:
    facts = examination.tools
    return facts if isinstance(facts, Unknown) else facts.perftest


@AREA.check(
    "perftest-missing", Severity.NOTE, "perftest is not installed: bandwidth cannot be measured", _PERFTEST
)
def perftest_missing(examination: Examination) -> Outcome:
    """The programs ib_write_bw and its like."""
    perftest = _perftest(examination)
    if not isinstance(perftest, Unknown):
        return passed(Evidence(perftest.evidence, ", ".join(perftest.installed)))
    if perftest.reason is not Reason.NOT_THERE:
        return unsure(f"perftest: {perftest}")
    return found(
        "ib_write_bw on GPU memory is the proof that GPUDirect RDMA works; distributions have perftest, but"
        " without CUDA",
        Evidence("command -v ib_write_bw", "not found"),
        fix=_BUILD,
    )


@AREA.check(
    "perftest-without-cuda",
    Severity.WARNING,
    "perftest cannot use GPU memory: it is built without CUDA",
    _PERFTEST,
)
def perftest_without_cuda(examination: Examination) -> Outcome:
    """Whether the program knows libcuda."""
    perftest = _perftest(examination)
    if isinstance(perftest, Unknown):
        return _without_perftest(perftest)
    if isinstance(perftest.cuda, Unknown):
        return unsure(f"whether perftest has CUDA: {perftest.cuda}")
    if perftest.cuda:
        return passed(Evidence(perftest.evidence, "built with CUDA"))
    return found(
        "its --use_cuda is refused, or passed over by old versions, which then measure host memory; what"
        " distributions offer is built so",
        Evidence(perftest.evidence, "no libcuda in it"),
        fix=_BUILD,
    )


def _without_perftest(perftest: Unknown) -> Outcome:
    if perftest.reason is Reason.NOT_THERE:  # perftest-missing says so
        return passed(Evidence("command -v ib_write_bw", "not installed"))
    return unsure(f"perftest: {perftest}")


@AREA.check(
    "perftest-without-dmabuf",
    Severity.NOTE,
    "perftest cannot use GPU memory by DMA-BUF",
    _PERFTEST,
)
def perftest_without_dmabuf(examination: Examination) -> Outcome:
    """Whether the program has --use_cuda_dmabuf; a warning where DMA-BUF is the only way."""
    perftest = _perftest(examination)
    if isinstance(perftest, Unknown):
        return _without_perftest(perftest)
    for fact in (perftest.cuda, perftest.dmabuf):
        if isinstance(fact, Unknown):
            return unsure(f"what perftest was built with: {fact}")
    if not perftest.cuda or perftest.dmabuf:  # without CUDA: perftest-without-cuda says so
        told = "built with it" if perftest.dmabuf else "built without CUDA"
        return passed(Evidence(perftest.evidence, told))
    dmabuf, peermem = usable(examination)
    only = dmabuf is True and peermem is False
    return found(
        "a test with --use_cuda goes by nvidia-peermem"
        + (", which cannot be used here: it fails with error 14" if only else " only"),
        Evidence(perftest.evidence, "no cuMemGetHandleForAddressRange in it"),
        fix=_BUILD,
        severity=Severity.WARNING if only else None,
    )


@AREA.check(
    "libcuda-link-missing",
    Severity.WARNING,
    "perftest opens libcuda.so, and only libcuda.so.1 is there",
    f"{_PERFTEST}, src/cuda_loader.c",
)
def libcuda_link_missing(examination: Examination) -> Outcome:
    """The link that packages for development bring, which perftest of 2025 and later opens."""
    perftest, libraries = _perftest(examination), examination.libraries
    if isinstance(perftest, Unknown):
        return _without_perftest(perftest)
    if isinstance(libraries, Unknown):
        return unsure(f"the libraries: {libraries}")
    if isinstance(perftest.opens_libcuda, Unknown):
        return unsure(f"the program of perftest: {perftest.opens_libcuda}")
    if not perftest.opens_libcuda:
        return passed(Evidence(perftest.evidence, "does not open libcuda.so"))
    driver = libraries.found["libcuda.so.1"]
    if libraries.found["libcuda.so"] or not driver:
        told = "there" if driver else "no CUDA driver library here"
        return passed(Evidence("libcuda.so", told))
    place = driver[0].path.rpartition("/")[0]
    return found(
        "it says “Failed to load CUDA library dynamically” and ends",
        Evidence(f"{place}/libcuda.so", "not there"),
        Evidence(f"{place}/libcuda.so.1", driver[0].path),
        fix=Plan(
            "Make the link",
            (
                Step(
                    "as the driver's package for development has it",
                    ("ln", "-s", "libcuda.so.1", f"{place}/libcuda.so"),
                    undo=("rm", f"{place}/libcuda.so"),
                ),
            ),
        ),
    )


@AREA.check(
    "perftest-port-in-use",
    Severity.NOTE,
    "perftest's port 18515 is taken on this node",
    f"{_PERFTEST}, README",
)
def perftest_port_in_use(examination: Examination) -> Outcome:
    """TCP sockets that listen on port 18515."""
    facts = examination.tools
    if isinstance(facts, Unknown):
        return unsure(f"the ports: {facts}")
    if isinstance(facts.perftest_listens, Unknown):
        return unsure(f"{facts.perftest_listens.reason.value}: {facts.perftest_listens.source}")
    if facts.perftest_listens is None:
        return passed(Evidence("/proc/net/tcp", "nothing listens on 18515"))
    return found(
        "a server of perftest waits here, or was left behind: another one says “Couldn't listen to port"
        " 18515”",
        Evidence(facts.perftest_listens, "a socket listens on port 18515 (hex 4853)"),
        fix=Plan(
            "Use another port",
            (
                Step(
                    "tells who it is", ("ss", "--listening", "--tcp", "--processes", "sport", "=", ":18515")
                ),
                instruction("give --port=18516 to both sides; do not end a test that is not yours", False),
            ),
        ),
    )
