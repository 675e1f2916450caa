"""Who makes queue pairs outside of verbs: who posts to them, and who lists and counts them, one row each.

NVIDIA/nccl src/transport/net_ib/gdaki (doca_verbs_qp.cpp: "Not connected to a counter set"; nccl issue 2181),
src/include/nccl_device/core.h, ncclGinType_t; NVIDIA/nvshmem ibgda.cpp and ibdevx.cpp, counter_set_id 0;
deepseek-ai/DeepEP, branch hybrid-ep, internode_doca.cu; openucx/ucx pull requests 8601 and 8677: UCX attaches
its own to the port's counter set since 1.14.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from probes.base.frozen import frozen
from probes.base.text import version_numbers
from probes.base.unknown import Maybe, known, map_known
from probes.facts.jobs.process_files import MappedLibrary, has_initialized_nvshmem
from probes.facts.jobs.processes import Process
from probes.nccl.settings import parse_number

GIN_TYPE, GDAKI, EFA_GDA = "NCCL_GIN_TYPE", 3, 5
IBGDA, IBGDA_LIBRARY = "NVSHMEM_IB_ENABLE_IBGDA", "nvshmem_transport_ibgda"
NVSHMEM = "libnvshmem_host"
GIN_CLASS, NVSHMEM_CLASS = "NCCL_GIN_IB_TC", "NVSHMEM_IB_TRAFFIC_CLASS"
_GIN_THREAD = "NCCL GIN"  # of the proxy, and of GDAKI where the CPU rings the doorbell
_FIRST_COUNTED_UCX = (1, 14)


@frozen
class _Signs:
    """What shows who makes queue pairs in a process."""

    libraries: tuple[MappedLibrary, ...]
    variables: Mapping[str, str]
    threads: tuple[str, ...]

    def maps(self, *names: str) -> bool:
        """Say whether the process maps a library of these names."""
        return any(library.name in names for library in self.libraries)

    def number(self, name: str) -> int | None:
        """Return a variable's number."""
        return parse_number(self.variables.get(name, ""))


@frozen
class Maker:
    """Who makes queue pairs; none of them is in `rdma resource show qp`."""

    name: str
    by_gpu: bool  # a GPU may post to them
    is_counted: bool  # in hw_counters: losses, timeouts and retries; port_xmit_data counts all
    is_used: Callable[[_Signs], bool | None]  # None: perhaps


def _gin(signs: _Signs) -> bool | None:
    if GIN_TYPE in signs.variables:
        return signs.number(GIN_TYPE) == GDAKI
    return None if any(name.startswith(_GIN_THREAD) for name in signs.threads) else False


def _ibgda(signs: _Signs) -> bool | None:
    has_started = has_initialized_nvshmem(signs.libraries)
    if signs.maps(IBGDA_LIBRARY) or (has_started and signs.number(IBGDA)):
        return True
    has_other = signs.maps(*(f"nvshmem_transport_{name}" for name in ("ibrc", "ibdevx", "ucx", "libfabric")))
    return None if has_started and not has_other else False


def _hybrid_ep(signs: _Signs) -> bool:
    return signs.maps("hybrid_ep_cpp") and not signs.maps("libnixl", "libplugin_UCX")  # USE_NIXL=1


def _old_ucx(signs: _Signs) -> bool | None:
    versions = [library.version for library in signs.libraries if library.name == "libucp"]
    numbers = known(map_known(versions[0], version_numbers), ()) if versions else ()
    return None if () < numbers < _FIRST_COUNTED_UCX else False  # MPI maps it, too


MAKERS = (
    Maker("NCCL's GDAKI", True, False, _gin),
    BY_IBGDA := Maker("NVSHMEM IBGDA", True, False, _ibgda),
    Maker("HybridEP", True, False, _hybrid_ep),
    # The NIC's firmware counts what it does, whoever posts (hw/efa/efa_verbs.c).
    Maker("NCCL's GIN on EFA", True, True, lambda signs: signs.number(GIN_TYPE) == EFA_GDA),
    Maker("NVSHMEM ibdevx", False, False, lambda signs: signs.maps("nvshmem_transport_ibdevx")),
    Maker("UCX before 1.14", False, False, _old_ucx),
)


@frozen
class OwnQueues:
    """Queue pairs of one maker in a process."""

    maker: Maker
    is_sure: bool  # False: the backend that it uses does not show

    @property
    def text(self) -> str:
        """What gdrtop cannot say of them, without a name of the process."""
        queues = "GPU-posted queues" if self.maker.by_gpu else "queues made with DEVX"
        return f"{'' if self.is_sure else 'possibly '}not counted for {queues} ({self.maker.name})"

    @property
    def sentence(self) -> str:
        """What of them gdrtop does not see, beside the queue pairs that the kernel lists."""
        perhaps = "" if self.is_sure else "possibly "
        by = "to which GPUs post" if self.maker.by_gpu else "made with DEVX"
        losses = "" if self.maker.is_counted else ", and their losses are not counted"
        return f"{perhaps}others of {self.maker.name}, {by}: the kernel does not list them{losses}"


def own_queues(
    process: Process, threads: Maybe[tuple[str, ...]] = (), variables: Mapping[str, str] | None = None
) -> tuple[OwnQueues, ...]:
    """Return what a process has made; `variables`: its settings, with those of nccl.conf."""
    libraries = known(process.libraries, ())
    own = known(process.environment, {}) if variables is None else variables
    signs = _Signs(libraries, own, known(threads, ()))
    uses = ((maker, maker.is_used(signs)) for maker in MAKERS)
    return tuple(OwnQueues(maker, used is True) for maker, used in uses if used is not False)


def may_post_by_gpu(queues: Iterable[OwnQueues]) -> bool:
    """Return whether a GPU may post to queue pairs that the kernel does not list."""
    return any(each.maker.by_gpu for each in queues)


def unlisted(queues: Iterable[OwnQueues]) -> str:
    """Return what the numbers of listed queue pairs leave out; "": nothing. UCX of MPI counts as nothing."""
    return next((each.text for each in queues if each.maker.by_gpu or each.is_sure), "")


def uncounted(queues: Iterable[OwnQueues]) -> str:
    """Return what hw_counters do not count of a process, the surest first; "": they count all."""
    outside = [each for each in queues if not each.maker.is_counted]
    return min(outside, key=lambda each: not each.is_sure).text if outside else ""
