"""Which path between GPU memory and the network each library in a process takes on this node, and why.

It follows from the process's environment as it was started, the libraries it maps, and what works here.
What a program sets later, or chooses itself, does not show.
Sources: NCCL src/init.cc dmaBufSupported, src/transport/net_ib/gdr.cc; openucx/ucx src/uct/ib/base/ib_md.c,
docs/source/faq.md; NVIDIA/nvshmem src/modules/transport/common/env_defs.h; docs.nvidia.com/nixl (user guide,
backend selection); kvcache-ai/Mooncake docs/source/getting_started/build.md,
mooncake-transfer-engine/src/common/environ.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from probes.base.frozen import frozen
from probes.base.text import version_numbers
from probes.base.unknown import Maybe, Unknown, known, map_known
from probes.facts.gpudirect import GdrPath
from probes.facts.jobs.process_files import MappedLibrary, has_initialized_nvshmem
from probes.facts.jobs.processes import Process
from probes.nccl.settings import parse_number
from probes.queries.engines import PEERMEM_VARIABLE, excludes_cuda, excludes_rdma, mooncake_uses_peermem
from probes.queries.finding import Finding
from probes.queries.jobs import STAGING_SETTINGS, TCP_SETTINGS, usable_paths
from probes.queries.modules import has_no_rdma_device
from probes.snapshot.examination import Examination

STAGED, TCP, NO_PATH, UNKNOWN = "copies through host memory", "TCP", "none", "unknown"
_NO_NIC = "no NIC"
_TCP_LOGS = ("job-log-tcp", "job-log-plugin-missing")
_DMABUF, _PEERMEM = GdrPath.DMABUF.value, GdrPath.PEERMEM.value
_NVSHMEM = "libnvshmem_host"
_FIRST_UCX_WITH_DMABUF = (1, 14)


@frozen
class LibraryPath:
    """A library in a process, and the path that it takes."""

    library: str  # "NCCL 2.27.7"
    path: str  # "DMA-BUF", "nvidia-peermem", STAGED, TCP, NO_PATH, UNKNOWN
    why: str


def library_paths(
    process: Process, findings: Iterable[Finding], examination: Examination
) -> Maybe[tuple[LibraryPath, ...]]:
    """Return the libraries that a process maps; `findings`: those about this process."""
    if isinstance(process.libraries, Unknown):
        return process.libraries
    ids = {finding.id: finding for finding in findings}
    paths = _Paths(process, ids, examination)
    found: dict[str, LibraryPath] = {}
    has_nvshmem = has_initialized_nvshmem(process.libraries)
    for library in process.libraries:
        if library.name in _LIBRARIES and (library.name != _NVSHMEM or has_nvshmem):
            title, choose = _LIBRARIES[library.name]
            version = known(library.version, "")
            path, why = choose(paths, library)
            found.setdefault(title, LibraryPath(f"{title} {version}".strip(), path, why))
    return tuple(found.values())


class _Paths:
    """The paths of one process."""

    def __init__(self, process: Process, findings: Mapping[str, Finding], examination: Examination) -> None:
        self._process, self._findings, self._examination = process, findings, examination
        self._dmabuf, self._peermem = usable_paths(examination)

    def nccl(self, library: MappedLibrary) -> tuple[str, str]:
        """NCCL: the checks of the doctor decide, then DMA-BUF before nvidia-peermem."""
        del library
        for ids, path in (((*TCP_SETTINGS, *_TCP_LOGS), TCP), (STAGING_SETTINGS, STAGED)):
            for name in ids:
                finding = self._findings.get(name)
                if finding is not None and (name != "nccl-dmabuf-disabled" or self._peermem is not True):
                    return path, finding.title
        if plugin := self._mapped("libnccl-net"):
            return self._of_plugin(plugin)
        disabled = self._get("NCCL_DMABUF_ENABLE")
        if isinstance(disabled, Unknown):
            return UNKNOWN, f"its environment could not be read ({disabled})"
        path, why = self._best(parse_number(disabled or "1") != 0, "NCCL_DMABUF_ENABLE=0")
        return path, f"{why}, and NCCL prefers it" if path == _DMABUF and self._peermem is True else why

    def _of_plugin(self, plugin: MappedLibrary) -> tuple[str, str]:
        path, why = self._best()
        return path, f"the network plug-in {plugin.path.rpartition('/')[2]} chooses; {why}"

    def ucx(self, library: MappedLibrary) -> tuple[str, str]:
        """UCX: its settings, then DMA-BUF before nvidia-peermem."""
        del library
        gdr, transports = self._get("UCX_IB_GPU_DIRECT_RDMA"), self._get("UCX_TLS")
        if isinstance(gdr, Unknown):
            return UNKNOWN, f"its environment could not be read ({gdr})"
        if without_cuda := self._findings.get("nixl-ucx-without-cuda"):
            return STAGED, without_cuda.title
        if gdr in ("no", "n"):
            return STAGED, f"UCX_IB_GPU_DIRECT_RDMA={gdr}"
        if isinstance(transports, str) and excludes_rdma(transports):
            return TCP, f"UCX_TLS={transports} has no RDMA transport"
        if isinstance(transports, str) and excludes_cuda(transports):
            return STAGED, f"UCX_TLS={transports} has no transport for GPU memory"
        ucx = self._mapped("libucp")
        version = None if ucx is None else known(map_known(ucx.version, version_numbers), None)
        if version is not None and version < _FIRST_UCX_WITH_DMABUF:
            return self._best(False, "this UCX is older than 1.14, the first with DMA-BUF")
        setting = self._get("UCX_CUDA_COPY_DMABUF")
        path, why = self._best(setting not in ("no", "n"), f"UCX_CUDA_COPY_DMABUF={setting}")
        needs = "; it needs UCX 1.14, and this version is unknown"
        return path, f"{why}{needs}" if path == _DMABUF and version is None else why

    def nvshmem(self, library: MappedLibrary) -> tuple[str, str]:
        """NVSHMEM: its transport, then DMA-BUF before nvidia-peermem."""
        transport = self._get("NVSHMEM_REMOTE_TRANSPORT")
        if isinstance(transport, Unknown):
            return UNKNOWN, f"its environment could not be read ({transport})"
        if transport == "none":
            return _NO_NIC, "NVSHMEM_REMOTE_TRANSPORT=none"
        if transport == "ucx":
            return self.ucx(library)
        disabled = self._get("NVSHMEM_IB_DISABLE_DMABUF")
        is_disabled = isinstance(disabled, str) and disabled.lower() in ("1", "true", "yes", "y", "on")
        return self._best(not is_disabled, f"NVSHMEM_IB_DISABLE_DMABUF={disabled}")

    def libfabric(self, library: MappedLibrary) -> tuple[str, str]:
        """libfabric: the provider of the node's NICs decides."""
        del library
        provider = self._get("FI_PROVIDER")
        if isinstance(provider, str) and provider in ("tcp", "sockets"):
            return TCP, f"FI_PROVIDER={provider}"
        return self._best()

    def nixl(self, library: MappedLibrary) -> tuple[str, str]:
        """NIXL: UCX, unless the program chooses another back end."""
        path, why = self.ucx(library)
        return path, f"by UCX, unless the program chooses another back end; {why}"

    def mooncake(self, library: MappedLibrary) -> tuple[str, str]:
        """Mooncake: nvidia-peermem or DMA-BUF, by its version and a variable; never the other one instead."""
        value = self._get(PEERMEM_VARIABLE)
        if isinstance(value, Unknown):
            return UNKNOWN, f"its environment could not be read ({value})"
        if self._mapped("libfabric"):
            return self.libfabric(library)
        uses_peermem = mooncake_uses_peermem(known(map_known(library.version, version_numbers), None), value)
        name, usable = (_PEERMEM, self._peermem) if uses_peermem else (_DMABUF, self._dmabuf)
        why = "its default" if value is None else f"{PEERMEM_VARIABLE}={value}"
        if isinstance(usable, Unknown):
            return UNKNOWN, f"{why}: {name}; whether that works here is unknown ({usable})"
        return (name, why) if usable else (NO_PATH, f"{why}: {name}, which does not work here")

    def _best(self, uses_dmabuf: bool = True, why_not: str = "") -> tuple[str, str]:
        """Return the path that works here, DMA-BUF first."""
        if has_no_rdma_device(self._examination):
            return _NO_NIC, "this node has no RDMA device"
        direct = self._examination.node.gpudirect
        if uses_dmabuf and self._dmabuf is True:
            return _DMABUF, "its requirements are met here"
        if uses_dmabuf and isinstance(self._dmabuf, Unknown):
            return UNKNOWN, f"whether DMA-BUF works here is unknown ({self._dmabuf})"
        without = "DMA-BUF does not work here" if uses_dmabuf else why_not
        if isinstance(self._peermem, Unknown) or isinstance(direct, Unknown):
            return UNKNOWN, f"{without}; whether nvidia-peermem works is unknown ({self._peermem})"
        name = direct.peermem.path.value
        if self._peermem:
            return name, f"{without}; {name} works"
        return STAGED, f"{without}, and {name} does not work here either"

    def _get(self, name: str) -> Maybe[str | None]:
        environment = self._process.environment
        return environment if isinstance(environment, Unknown) else environment.get(name)

    def _mapped(self, start: str) -> MappedLibrary | None:
        libraries = known(self._process.libraries, ())
        return next((library for library in libraries if library.name.startswith(start)), None)


_Choose = Callable[[_Paths, MappedLibrary], tuple[str, str]]
_LIBRARIES: dict[str, tuple[str, _Choose]] = {
    "libnccl": ("NCCL", _Paths.nccl),
    "libucp": ("UCX", _Paths.ucx),
    _NVSHMEM: ("NVSHMEM", _Paths.nvshmem),
    "libfabric": ("libfabric", _Paths.libfabric),
    "libnixl": ("NIXL", _Paths.nixl),
    "libplugin_UCX": ("NIXL", _Paths.nixl),
    "mooncake/engine": ("Mooncake", _Paths.mooncake),
}
