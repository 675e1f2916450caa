"""Engines that move KV caches between nodes: Mooncake and NIXL, and how they register GPU memory."""

from __future__ import annotations

import posixpath

from probes.base.plan import instruction
from probes.base.unknown import Unknown, known
from probes.checks.nccl.library import SETTLED_SECONDS, versions_of
from probes.facts.jobs.process_files import MappedLibrary
from probes.facts.jobs.processes import Process
from probes.plans.common import modprobe_step
from probes.queries.engines import PEERMEM_VARIABLE, excludes_cuda, mooncake_uses_peermem
from probes.queries.finding import Area, Evidence, Outcome, Severity, need, passed
from probes.queries.jobs import (
    GDR_PATHS,
    JobSettings,
    conclude,
    job_plan,
    jobs_of,
    maps,
    no_fault,
    usable_paths,
)
from probes.snapshot.examination import Examination

AREA = Area("nccl")

_ENGINE, _PEERMEM = "mooncake/engine", PEERMEM_VARIABLE
_NEWEST_READ = (0, 3, 12, 1)
_PLUGIN, _UCP, _CUDA_MODULE = "libplugin_UCX", "libucp", "libuct_cuda"
_OTHER_MODULES = ("libuct_ib", "libuct_cma", "libuct_rdmacm", "libuct_xpmem")
_MODULES = "UCX_MODULE_DIR"


@AREA.check(
    "mooncake-needs-peermem",
    Severity.WARNING,
    "A job's Mooncake registers GPU memory with nvidia_peermem, which is not usable",
    "https://github.com/kvcache-ai/Mooncake, docs/source/getting_started/build.md; "
    "mooncake-common/src/environ.cpp",
    ok="No job's Mooncake needs nvidia_peermem, or it is usable",
    impact="Registering GPU memory fails with “Bad address” (errno 14), and then AddressNotRegistered.",
    data_path=True,
    part_of=("no-gdr-path",),
)
def mooncake_needs_peermem(examination: Examination) -> Outcome:
    """Find Mooncake with RDMA devices open where nvidia_peermem is not usable, unless it uses DMA-BUF.

    WITH_NVIDIA_PEERMEM is read since 0.3.11; its default is true, but for 0.3.11.
    """
    jobs = jobs_of(examination)
    users = [
        settings
        for settings in jobs.settings
        if settings.process is not None
        and maps(settings.process, _ENGINE)
        and settings.process.uverbs_files
        and not maps(settings.process, "libfabric")  # its transport for EFA registers by libfabric
    ]
    if not users:
        return conclude(jobs, (), "")
    dmabuf, peermem = usable_paths(examination)
    if need(peermem, GDR_PATHS):
        return passed(Evidence("gdrtop check --only no-gdr-path", "nvidia_peermem is usable"))
    affected = [settings for settings in users if _uses_peermem(settings)]
    sure = all(_is_certain(settings) for settings in affected)
    steps = [
        modprobe_step(
            "Load the module; this fails if it was built without peer-memory symbols", "nvidia-peermem"
        )
    ]
    if dmabuf is True:
        text = f"Use DMA-BUF, which works on this node: set {_PEERMEM}=0 (Mooncake 0.3.11 or newer)"
        steps.insert(0, instruction(text, needs_root=False))
        steps[1] = instruction("If that is not possible, load the module: `modprobe nvidia-peermem`")
    return conclude(
        jobs,
        [line for settings in affected for line in _evidence(settings)],
        f"{'It' if sure else 'It likely'} registers GPU memory by ibv_reg_mr, which needs nvidia_peermem.",
        fix=job_plan("Let Mooncake register GPU memory", *steps),
        devices=("nvidia_peermem",),
    )


def _version(settings: JobSettings) -> tuple[int, ...] | None:
    assert settings.process is not None
    return next((numbers for _, numbers in versions_of(settings.process, _ENGINE)), None)


def _uses_peermem(settings: JobSettings) -> bool:
    return mooncake_uses_peermem(_version(settings), settings.get(_PEERMEM))


def _is_certain(settings: JobSettings) -> bool:
    assert settings.process is not None
    version = _version(settings)
    if version is None or isinstance(settings.process.environment, Unknown):
        return False
    return settings.get(_PEERMEM) is not None or version <= _NEWEST_READ


def _evidence(settings: JobSettings) -> list[Evidence]:
    process = settings.process
    assert process is not None
    libraries = [library for library in known(process.libraries, ()) if library.name == _ENGINE]
    version = libraries[0].version
    what = libraries[0].path if isinstance(version, Unknown) else f"{libraries[0].path}, version {version}"
    lines = [Evidence(f"/proc/{process.pid}/maps", what)]
    if settings.get(_PEERMEM) is not None:
        lines.append(settings.evidence(_PEERMEM))
    return [*lines, Evidence("gdrtop check --only no-gdr-path", "nvidia_peermem is not usable")]


@AREA.check(
    "nixl-ucx-without-cuda",
    Severity.WARNING,
    "A job's NIXL uses UCX without its CUDA module",
    "https://github.com/ai-dynamo/nixl/issues/1628; src/plugins/ucx/ucx_utils.cpp",
    ok="No job's NIXL uses UCX without its CUDA module",
    impact="NIXL 1.0 and newer refuse GPU memory: “VRAM memory is detected as host by UCX”. Older ones only "
    "warn, and copy through host memory.",
    data_path=True,
)
def nixl_ucx_without_cuda(examination: Examination) -> Outcome:
    """Find NIXL's UCX plugin with libucp and without libuct_cuda, once UCX has loaded its modules.

    Where it has loaded none, a process that is not new has found none.
    """
    jobs = jobs_of(examination)
    if not jobs.processes and not jobs.unseen:
        return no_fault(jobs)
    facts = need(examination.processes, "the processes")
    wrong = [
        settings
        for settings in jobs.settings
        if settings.process is not None
        and _lacks_cuda(settings.process, facts.taken_at)
        and not excludes_cuda(settings.get("UCX_TLS") or "")
    ]
    directories = dict.fromkeys(
        _module_directory(library)
        for settings in wrong
        if settings.process is not None
        for library in known(settings.process.libraries, ())
        if library.name == _UCP
    )
    where = next(iter(directories), "the directory with libuct_cuda.so")
    evidence = []
    for settings in wrong:
        assert settings.process is not None
        paths = [library.path for library in known(settings.process.libraries, ()) if library.name == _UCP]
        evidence.append(Evidence(f"/proc/{settings.process.pid}/maps", f"{paths[0]}, without {_CUDA_MODULE}"))
        if settings.get(_MODULES) is not None:
            evidence.append(settings.evidence(_MODULES))
    return conclude(
        jobs,
        evidence,
        f"UCX loads its modules from the directory ucx beside its library, or from {_MODULES}. The process "
        "does not map libuct_cuda.",
        fix=job_plan(
            "Let UCX find its CUDA module",
            f"Set {_MODULES}={where}, if that directory has libuct_cuda.so",
            "Otherwise install a UCX that was built with CUDA",
        ),
    )


def _lacks_cuda(process: Process, now: float) -> bool:
    if not (maps(process, _PLUGIN) and maps(process, _UCP)) or maps(process, _CUDA_MODULE):
        return False
    if any(maps(process, name) for name in _OTHER_MODULES):
        return True
    started = process.usage if isinstance(process.usage, Unknown) else process.usage.started_at
    return not isinstance(started, Unknown) and now - started > SETTLED_SECONDS


def _module_directory(library: MappedLibrary) -> str:
    return f"{posixpath.dirname(library.path)}/ucx"
