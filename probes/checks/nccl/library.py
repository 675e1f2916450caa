"""Checks of the NCCL that jobs map: its version, its plugins, and the paths that it can use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from probes.base.evidence import Evidence, Severity
from probes.base.frozen import frozen
from probes.base.text import version_numbers
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpu.generations import GpuGeneration, generation_of
from probes.facts.jobs.process_files import WORLD_SIZES, MappedLibrary
from probes.facts.jobs.processes import Process
from probes.nccl.log.verdict import FIRST_WITH_DMABUF
from probes.nccl.settings import parse_number
from probes.queries.finding import RDMA_DEVICES, Area, Outcome, need, passed, pid_name, unknown
from probes.queries.jobs import (
    GDR_PATHS,
    JobSettings,
    conclude,
    job_plan,
    jobs_of,
    maps,
    no_fault,
    pid_in,
    usable_paths,
    values_of,
    without_variable,
)
from probes.queries.modules import PLUGIN, driver_with_plugin, impossible_by_design, plugin_only_driver
from probes.snapshot.examination import Examination

DMABUF_SETTING = "NCCL_DMABUF_ENABLE"
AREA = Area("nccl", __package__)
SETTLED_SECONDS = 120.0


def versions_of(process: Process, name: str) -> Iterator[tuple[MappedLibrary, tuple[int, ...]]]:
    """Yield the libraries of a name that a process maps, without those of an unknown version."""
    for library in known(process.libraries, ()):
        if library.name == name and not isinstance(library.version, Unknown):
            yield library, version_numbers(library.version)


def newer(libraries: Iterable[MappedLibrary], product: str, version: str) -> tuple[str, ...]:
    """Return what gives jobs a newer library, by who brought the copies: their image, or a Python package."""
    owners = dict.fromkeys(library.bundled_by for library in libraries)
    return tuple(
        f"Use a build of {owner} that contains {product} {version} or later: it uses no other copy"
        if owner
        else f"Install {product} {version} or later in the job's image"
        for owner in owners
    )


def _mapped(process: Process, library: MappedLibrary) -> Evidence:
    return Evidence(f"/proc/{process.pid}/maps", library.path)


def _version_unknown(examination: Examination) -> str:
    """Return what a check needs if the version of a job's NCCL is unknown, or ""."""
    for process in jobs_of(examination).processes:
        for library in known(process.libraries, ()):
            if library.name == "libnccl" and isinstance(library.version, Unknown):
                return needs_version(library.path)
    return ""


def needs_version(path: str) -> str:
    """Return what a check needs if the name of a library does not show its version."""
    return f"needs the version of {path}, which its name does not show"


@AREA.critical("nccl-dmabuf-disabled", data_path=True, requires=(impossible_by_design,))
def nccl_dmabuf_disabled(examination: Examination) -> Outcome:
    """Find NCCL_DMABUF_ENABLE=0 (default 1); a note if the job can use nvidia-peermem."""
    dmabuf, peermem = usable_paths(examination)
    evidence = list(
        values_of(
            examination, DMABUF_SETTING, lambda _, v: "disables DMA-BUF" if parse_number(v) == 0 else None
        )
    )
    served = need(peermem, GDR_PATHS, *evidence) if evidence else False
    return conclude(
        jobs_of(examination),
        evidence,
        "NCCL uses nvidia-peermem instead, which works here."
        if served
        else "The only other path is nvidia-peermem, which is not usable here.",
        fix=without_variable(DMABUF_SETTING),
        severity=Severity.NOTE if served or dmabuf is False else None,
        impact="None. The job can use nvidia-peermem." if served else "",
    )


@AREA.critical("nccl-too-old-for-dmabuf", data_path=True, requires=(impossible_by_design,))
def nccl_too_old_for_dmabuf(examination: Examination) -> Outcome:
    """Find versions below 2.13.4 if DMA-BUF is the node's only path."""
    jobs = jobs_of(examination)
    if not jobs.processes and not jobs.unseen:
        return no_fault(jobs)
    maybe_dmabuf, maybe_peermem = usable_paths(examination)
    peermem = need(maybe_peermem, GDR_PATHS)
    dmabuf = need(maybe_dmabuf, GDR_PATHS)
    if peermem or not dmabuf:
        return passed(Evidence("nvidia-peermem", "usable" if peermem else "not usable, nor is DMA-BUF"))
    old = [
        (process, library)
        for process in jobs.processes
        for library, version in versions_of(process, "libnccl")
        if version < FIRST_WITH_DMABUF
    ]
    if not old and (missing := _version_unknown(examination)):
        return unknown(missing)
    cause = "NCCL supports DMA-BUF only from 2.13.4 on, and nvidia-peermem is not usable here."
    fix = job_plan("Use a newer NCCL", *newer((library for _, library in old), "NCCL", "2.23.4"))
    return conclude(jobs, (_mapped(*each) for each in old), cause, fix)


@frozen
class _Software:
    """A library with code for GPUs: its name in the maps, and its first version for a generation."""

    library: str
    product: str
    first: Callable[[GpuGeneration], tuple[int, ...]]


_NCCL = _Software("libnccl", "NCCL", lambda row: row.first_nccl)
_CUDA = _Software("libcudart", "CUDA", lambda row: row.first_cuda)


def first_for_gpus(
    examination: Examination, first: Callable[[GpuGeneration], tuple[int, ...]]
) -> Maybe[tuple[tuple[int, ...], str]]:
    """Return the first version that supports the oldest GPU of this node, and that GPU's generation.

    (): every version that gdrtop meets. The table says nothing of other major compute capabilities. A GPU
    that NVML does not show is left out: no job can use it.
    """
    gpus = examination.node.gpus
    if isinstance(gpus, Unknown):
        return gpus
    found = [gpu.compute_capability for gpu in gpus.gpus]
    read = [capability for capability in found if not isinstance(capability, Unknown)]
    if not read:
        return next((capability for capability in found if isinstance(capability, Unknown)), ((), ""))
    row = generation_of(min(read))
    version = first(row) if row is not None else ()
    if row is None or not version:
        return (), ""
    if row.capability[0] != min(read)[0]:
        number = ".".join(map(str, min(read)))
        return Unknown(Reason.NOT_THERE, "compute capability", f"gdrtop does not know {number}")
    return version, row.name


def is_older(version: tuple[int, ...], first: tuple[int, ...]) -> bool:
    """Return whether a version is older; "2.32" stands for each of its releases."""
    return version < first[: len(version)]


def _older_than_gpus(examination: Examination, software: _Software) -> Outcome:
    """Find jobs whose library is older than the first one for the GPUs of this node."""
    jobs = jobs_of(examination)
    if not jobs.processes and not jobs.unseen:
        return no_fault(jobs)
    first, generation = need(first_for_gpus(examination, software.first), "the GPUs' generation")
    if not first:
        return passed(Evidence("nvidia-smi --query-gpu=compute_cap", "every version supports these GPUs"))
    old = [
        (process, library)
        for process in jobs.processes
        for library, version in versions_of(process, software.library)
        if is_older(version, first)
    ]
    if not old and software is _NCCL and (missing := _version_unknown(examination)):
        return unknown(missing)
    number = ".".join(map(str, first))
    steps = newer((library for _, library in old), software.product, number)
    return conclude(
        jobs,
        (_mapped(*each) for each in old),
        f"{software.product} supports {generation} GPUs from {number} on.",
        job_plan(f"Use a newer {software.product}", *steps),
    )


@AREA.warning("nccl-older-than-gpu")
def nccl_older_than_gpu(examination: Examination) -> Outcome:
    """Compare the NCCL of jobs with the first one that supports the GPUs."""
    return _older_than_gpus(examination, _NCCL)


@AREA.note("cuda-older-than-gpu")
def cuda_older_than_gpu(examination: Examination) -> Outcome:
    """Compare the CUDA runtime of jobs with the first one that has code for the GPUs."""
    return _older_than_gpus(examination, _CUDA)


@AREA.warning("nccl-twice-in-process")
def nccl_twice_in_process(examination: Examination) -> Outcome:
    """Find different libnccl files in one process."""
    jobs = jobs_of(examination)
    evidence: list[Evidence] = []
    for process in jobs.processes:
        twice = [library for library in known(process.libraries, ()) if library.name == "libnccl"]
        if len(twice) > 1:
            evidence.extend(_mapped(process, library) for library in twice)
    return conclude(
        jobs,
        evidence,
        "A framework brings its own NCCL and something else loads another. The load order decides which one"
        " is used.",
    )


@AREA.note("nccl-versions-differ")
def nccl_versions_differ(examination: Examination) -> Outcome:
    """Compare the versions of libnccl over the processes of each user."""
    jobs = jobs_of(examination)
    by_user: dict[tuple[int, str], dict[tuple[int, ...], Evidence]] = {}
    for process in jobs.processes:
        if isinstance(process.uid, Unknown):
            continue
        for library, version in versions_of(process, "libnccl"):
            by_user.setdefault((process.uid, process.job), {}).setdefault(version, _mapped(process, library))
    differing = {key: versions for key, versions in by_user.items() if len(versions) > 1}
    evidence = [line for versions in differing.values() for line in versions.values()]
    if not evidence and (missing := _version_unknown(examination)):
        return unknown(missing)
    of_one_job = any(job for _, job in differing)
    cause = "All ranks of one job need the same NCCL."
    if not of_one_job:
        cause += " Two jobs of one user may differ: which job these processes belong to is unknown."
    severity = Severity.WARNING if of_one_job else None
    pids = [map(pid_in, versions.values()) for versions in differing.values()]
    users = tuple(frozenset(pid_name(pid) for pid in each if pid is not None) for each in pids)
    return conclude(
        jobs, evidence, cause, severity=severity, part_of=("nccl-twice-in-process",), subjects=users
    )


def _plugins(process: Process) -> list[str]:
    libraries = known(process.libraries, ())
    return [library.path for library in libraries if library.name.startswith("libnccl-net")]


@AREA.note("nccl-net-plugin-trouble")
def nccl_net_plugin_trouble(examination: Examination) -> Outcome:
    """Find libnccl-net in the maps of jobs, if NCCL could use the NICs without it."""
    jobs = jobs_of(examination)
    bdf, driver = driver_with_plugin(examination)
    if driver:
        return passed(Evidence(f"/sys/bus/pci/devices/{bdf}/driver", driver))
    need(examination.node.pci, "the PCI devices")
    return conclude(
        jobs,
        [
            Evidence(f"/proc/{process.pid}/maps", path)
            for process in jobs.processes
            for path in _plugins(process)
        ],
        "NCCL loads libnccl-net from its library path. To compare, run the job with NCCL_NET_PLUGIN=none and"
        " NCCL_NET=IB.",
        part_of=("nccl-net-plugin-mixed",),
    )


@AREA.critical(
    "nccl-net-plugin-absent",
    data_path=True,
    part_of=("nccl-net-plugin-not-found", "nccl-net-plugin-mixed", "nccl-net-socket"),
)
def nccl_net_plugin_absent(examination: Examination) -> Outcome:
    """Find jobs with more ranks than this node has GPUs that map NCCL and no libnccl-net.

    NCCL loads the plugin with its first communicator, so processes of the last two minutes are left out.
    """
    jobs = jobs_of(examination)
    driver = plugin_only_driver(examination)
    if not driver:
        need(examination.node.rdma, RDMA_DEVICES, absent=Evidence("/sys/class/infiniband", "no RDMA device"))
        drivers = "/sys/class/infiniband/*/device/driver"
        return passed(Evidence(drivers, "NCCL needs no plugin for these NICs"))
    evidence = [
        Evidence(f"/proc/{process.pid}/maps", f"{libraries[0].path}, and no libnccl-net")
        for process in jobs.processes
        if (libraries := [library for library, _ in versions_of(process, "libnccl")])
        and not _plugins(process)
        and _ranks(process) > len(examination.topology.gpus)
        and not _is_young(examination, process)
    ]
    return conclude(
        jobs,
        evidence,
        f"NCCL's own code cannot use {driver.partition('_')[0]} NICs; {PLUGIN} does so through libfabric.",
        fix=job_plan(
            "Give the job the plugin",
            f"Install {PLUGIN} and libfabric in the job's image",
            "Add the directory of libnccl-net.so to LD_LIBRARY_PATH",
        ),
    )


def _ranks(process: Process) -> int:
    """Return the number of ranks that the environment names; 0 if it names none."""
    values = known(process.environment, {})
    return next((parse_number(values[name]) or 0 for name in WORLD_SIZES if name in values), 0)


def _is_young(examination: Examination, process: Process) -> bool:
    facts, usage = examination.processes, process.usage
    started = usage if isinstance(usage, Unknown) else usage.started_at
    if isinstance(facts, Unknown) or isinstance(started, Unknown):
        return False
    return facts.taken_at - started < SETTLED_SECONDS


@AREA.warning("nccl-net-plugin-mixed")
def nccl_net_plugin_mixed(examination: Examination) -> Outcome:
    """Find processes of one user with one NCCL file and RDMA open, of which only some map libnccl-net."""
    jobs = jobs_of(examination)
    groups: dict[object, list[Process]] = {}
    for process in jobs.processes:
        nccl = [library.path for library, _ in versions_of(process, "libnccl")]
        if nccl and not isinstance(process.uverbs_files, Unknown) and process.uverbs_files:
            groups.setdefault((nccl[0], process.uid), []).append(process)
    evidence = []
    for group in groups.values():
        with_plugin = [process for process in group if _plugins(process)]
        if with_plugin and len(with_plugin) < len(group):
            without = next(process for process in group if not _plugins(process))
            evidence.append(Evidence(f"/proc/{with_plugin[0].pid}/maps", _plugins(with_plugin[0])[0]))
            evidence.append(Evidence(f"/proc/{without.pid}/maps", "no libnccl-net"))
    return conclude(jobs, evidence, "Ranks with the plugin cannot connect to ranks without it.")


@AREA.warning("nccl-net-plugin-not-found", data_path=True)
def nccl_net_plugin_not_found(examination: Examination) -> Outcome:
    """Find jobs that have NCCL and RDMA open, and no libnccl-net among their libraries."""
    name = "NCCL_NET_PLUGIN"
    jobs = jobs_of(examination)

    def wrong(settings: JobSettings, value: str) -> str | None:
        process = settings.process
        # A plugin file with another name looks like any other library.
        if process is None or value.lower() in ("", "none") or ("/" in value and "libnccl-net" not in value):
            return None
        has_rdma = not isinstance(process.uverbs_files, Unknown) and bool(process.uverbs_files)
        return "not mapped" if has_rdma and maps(process, "libnccl") and not _plugins(process) else None

    evidence = list(values_of(examination, name, wrong))
    if not evidence and not any(settings.get(name) for settings in jobs.settings) and not jobs.not_known:
        return no_fault(jobs)
    return conclude(
        jobs,
        evidence,
        "NCCL searches LD_LIBRARY_PATH for libnccl-net-NAME.so. If none is found, NCCL only writes a line to"
        " its log.",
        fix=without_variable(name, "or add the plugin's directory to LD_LIBRARY_PATH"),
    )
