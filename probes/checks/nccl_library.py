"""The NCCL that jobs map: its version, its plugins, and what it makes of DMA-BUF and nvidia-peermem here."""

from __future__ import annotations

import re
from collections.abc import Iterator

from probes.checks.finding import Area, Evidence, Outcome, Severity, passed, unsure
from probes.checks.jobs import Settings, jobs_of, maps, no_fault, settle, values_of, without_variable
from probes.checks.references import NCCL_VARIABLES
from probes.examination import Examination
from probes.nccl_settings import parse_number
from probes.plan import Plan, instruction
from probes.processes import MappedLibrary, Process
from probes.unknown import Maybe, Unknown

AREA = Area("nccl")
_DMABUF = "NCCL_DMABUF_ENABLE"
_FIRST_WITH_DMABUF = (2, 13, 4)
_NEWER = Plan(
    "Use a newer NCCL",
    (
        instruction("take NCCL 2.23.4 or later into the job's image or Python environment", needs_root=False),
        instruction("restart the job", needs_root=False),
    ),
    disturbs="the job has to be restarted",
)


def _versions(process: Process, name: str) -> Iterator[tuple[MappedLibrary, tuple[int, ...]]]:
    """The libraries of a name that a process maps, with their versions where they are known."""
    for library in () if isinstance(process.libraries, Unknown) else process.libraries:
        if library.name == name and not isinstance(library.version, Unknown):
            numbers = tuple(int(part) for part in re.findall(r"[0-9]{1,6}", library.version))
            yield library, numbers


def _mapped(process: Process, library: MappedLibrary) -> Evidence:
    return Evidence(f"/proc/{process.pid}/maps", library.path)


def _version_unknown(examination: Examination) -> str:
    """Names a process whose NCCL does not tell its version; "" where there is none."""
    for process in jobs_of(examination).processes:
        for library in () if isinstance(process.libraries, Unknown) else process.libraries:
            if library.name == "libnccl" and isinstance(library.version, Unknown):
                return f"the version of {library.path} of process {process.pid}, which its name does not tell"
    return ""


def usable(examination: Examination) -> tuple[Maybe[bool], Maybe[bool]]:
    """Whether DMA-BUF and nvidia-peermem can be used on this node."""
    direct = examination.node.gpudirect
    return (direct, direct) if isinstance(direct, Unknown) else (direct.dmabuf.usable, direct.peermem.usable)


@AREA.check(
    "nccl-dmabuf-disabled",
    Severity.CRITICAL,
    "NCCL_DMABUF_ENABLE=0: a job does without DMA-BUF",
    NCCL_VARIABLES + "#nccl-dmabuf-enable",
)
def nccl_dmabuf_disabled(examination: Examination) -> Outcome:
    """The variable, which is 1 by default; a note where nvidia-peermem serves the job."""
    dmabuf, peermem = usable(examination)
    evidence = list(values_of(examination, _DMABUF, lambda _, v: "off" if parse_number(v) == 0 else None))
    if evidence and isinstance(peermem, Unknown):
        return unsure(f"whether nvidia-peermem can be used: {peermem}", *evidence)
    served = not isinstance(peermem, Unknown) and peermem
    return settle(
        jobs_of(examination),
        evidence,
        "the job goes by nvidia-peermem instead, which works here"
        if served
        else "nvidia-peermem is the only other way and cannot be used: the job has no GPUDirect RDMA",
        fix=without_variable(_DMABUF),
        severity=Severity.NOTE if served or dmabuf is False else None,
    )


@AREA.check(
    "nccl-too-old-for-dmabuf",
    Severity.CRITICAL,
    "a job's NCCL is older than DMA-BUF in NCCL, and nvidia-peermem cannot be used",
    "NCCL release notes, 2.13.4, https://docs.nvidia.com/deeplearning/nccl/release-notes/",
)
def nccl_too_old_for_dmabuf(examination: Examination) -> Outcome:
    """Versions below 2.13.4 where DMA-BUF is the node's only way."""
    jobs = jobs_of(examination)
    if not jobs.processes and not jobs.unseen:
        return no_fault(jobs)
    dmabuf, peermem = usable(examination)
    if isinstance(peermem, Unknown) or isinstance(dmabuf, Unknown):
        return unsure(f"which way this node can use: {peermem if isinstance(peermem, Unknown) else dmabuf}")
    if peermem or not dmabuf:
        return passed(Evidence("nvidia-peermem", "usable" if peermem else "neither way is usable"))
    evidence = [
        _mapped(process, library)
        for process in jobs.processes
        for library, version in _versions(process, "libnccl")
        if version < _FIRST_WITH_DMABUF
    ]
    if not evidence and (told := _version_unknown(examination)):
        return unsure(told)
    return settle(
        jobs, evidence, "NCCL uses DMA-BUF since 2.13.4; this job copies through host memory", _NEWER
    )


@AREA.check(
    "nccl-twice-in-process",
    Severity.WARNING,
    "one process maps two NCCL libraries",
    "dlopen(3), https://man7.org/linux/man-pages/man3/dlopen.3.html",
)
def nccl_twice_in_process(examination: Examination) -> Outcome:
    """Different libnccl files in one process."""
    jobs = jobs_of(examination)
    evidence: list[Evidence] = []
    for process in jobs.processes:
        paths = [] if isinstance(process.libraries, Unknown) else process.libraries
        twice = [library for library in paths if library.name == "libnccl"]
        if len(twice) > 1:
            evidence.extend(_mapped(process, library) for library in twice)
    return settle(
        jobs,
        evidence,
        "a framework brings its own NCCL and something else loads another: which one answers is left to"
        " chance",
        fix=Plan(
            "Leave one NCCL",
            (
                instruction("remove one from LD_LIBRARY_PATH, LD_PRELOAD or the image", needs_root=False),
                instruction("restart the job", needs_root=False),
            ),
            disturbs="the job has to be restarted",
        ),
    )


@AREA.check(
    "nccl-versions-differ",
    Severity.NOTE,
    "processes of one user map different versions of NCCL",
    "NCCL release notes, https://docs.nvidia.com/deeplearning/nccl/release-notes/",
)
def nccl_versions_differ(examination: Examination) -> Outcome:
    """Versions of libnccl over the processes of each user."""
    jobs = jobs_of(examination)
    by_user: dict[int, dict[tuple[int, ...], Evidence]] = {}
    for process in jobs.processes:
        if isinstance(process.uid, Unknown):
            continue
        for library, version in _versions(process, "libnccl"):
            by_user.setdefault(process.uid, {}).setdefault(version, _mapped(process, library))
    evidence = [one for versions in by_user.values() if len(versions) > 1 for one in versions.values()]
    if not evidence and (told := _version_unknown(examination)):
        return unsure(told)
    return settle(
        jobs,
        evidence,
        "all ranks of one job need the same NCCL: with different ones it hangs or fails at its start. Two"
        " jobs of one user may well differ",
    )


def _plugins(process: Process) -> list[str]:
    libraries = () if isinstance(process.libraries, Unknown) else process.libraries
    return [one.path for one in libraries if one.name.startswith("libnccl-net")]


@AREA.check(
    "nccl-net-plugin-trouble",
    Severity.NOTE,
    "a network plugin takes the place of NCCL's own InfiniBand code",
    NCCL_VARIABLES + "#nccl-net-plugin",
)
def nccl_net_plugin_trouble(examination: Examination) -> Outcome:
    """libnccl-net in the maps of jobs."""
    jobs = jobs_of(examination)
    return settle(
        jobs,
        [Evidence(f"/proc/{one.pid}/maps", path) for one in jobs.processes for path in _plugins(one)],
        "the plugin has its own rules for GPUDirect RDMA and may pass over NCCL_IB_ variables; to compare,"
        " run with NCCL_NET_PLUGIN=none NCCL_NET=IB",
    )


@AREA.check(
    "nccl-net-plugin-mixed",
    Severity.WARNING,
    "only some ranks of a job have the network plugin",
    "https://github.com/NVIDIA/nccl/issues/1634",
)
def nccl_net_plugin_mixed(examination: Examination) -> Outcome:
    """Processes with the same NCCL file and user, RDMA open, some with libnccl-net and some without."""
    jobs = jobs_of(examination)
    groups: dict[object, list[Process]] = {}
    for process in jobs.processes:
        nccl = [library.path for library, _ in _versions(process, "libnccl")]
        if nccl and not isinstance(process.uverbs_files, Unknown) and process.uverbs_files:
            groups.setdefault((nccl[0], process.uid), []).append(process)
    evidence = []
    for group in groups.values():
        having = [one for one in group if _plugins(one)]
        if having and len(having) < len(group):
            without = next(one for one in group if not _plugins(one))
            evidence.append(Evidence(f"/proc/{having[0].pid}/maps", _plugins(having[0])[0]))
            evidence.append(Evidence(f"/proc/{without.pid}/maps", "no libnccl-net"))
    return settle(
        jobs,
        evidence,
        "ranks with and without the plugin cannot talk to each other: a job of both hangs without a message",
        fix=Plan(
            "Give all ranks the same plugin",
            (
                instruction("use one image and one LD_LIBRARY_PATH for all ranks", needs_root=False),
                instruction("restart the job", needs_root=False),
            ),
            disturbs="the job has to be restarted",
        ),
    )


@AREA.check(
    "nccl-net-plugin-not-found",
    Severity.WARNING,
    "NCCL_NET_PLUGIN names a plugin that was not loaded",
    NCCL_VARIABLES + "#nccl-net-plugin",
)
def nccl_net_plugin_not_found(examination: Examination) -> Outcome:
    """Jobs that have NCCL and RDMA open, and no libnccl-net among their libraries."""
    name = "NCCL_NET_PLUGIN"
    jobs = jobs_of(examination)

    def wrong(settings: Settings, value: str) -> str | None:
        process = settings.process
        # A file of another name is not told from other libraries.
        if process is None or value.lower() in ("", "none") or ("/" in value and "libnccl-net" not in value):
            return None
        begun = not isinstance(process.uverbs_files, Unknown) and bool(process.uverbs_files)
        return "not mapped" if begun and maps(process, "libnccl") and not _plugins(process) else None

    evidence = list(values_of(examination, name, wrong))
    if not evidence and not any(one.get(name) for one in jobs.settings) and not (jobs.unseen or jobs.unread):
        return no_fault(jobs)
    return settle(
        jobs,
        evidence,
        "NCCL looks for libnccl-net-NAME.so in LD_LIBRARY_PATH and, where there is none, uses its own code"
        " without more than a line in its log",
        fix=without_variable(name, "or add the plugin's directory to LD_LIBRARY_PATH"),
    )
