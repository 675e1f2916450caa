"""Which bandwidth tests this node can run, and how to install what is missing."""

from __future__ import annotations

from collections.abc import Mapping

from probes.bandwidth.model.planned_series import Purpose
from probes.bandwidth.tools.perftest import GPU_BUILD_HINT
from probes.bandwidth.tools.tool import tool_of
from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.facts.system.packages import Package, packages_of
from probes.facts.system.tool_names import PERFTEST, TEST_TOOLS
from probes.facts.system.tools import Perftest
from probes.host.protocol import Host
from probes.snapshot.examination import Examination

_NO_VERSION = "it prints its version only when a test runs"


@frozen
class Available:
    """One program that measures, installed or missing, with the names of `gdrtop bench --list --json`."""

    tool: str  # of TEST_TOOLS
    path: Maybe[str]  # NOT_THERE: not installed
    version: Maybe[str]
    gpu_memory: Maybe[bool]
    dmabuf: Maybe[bool]  # GPU memory by DMA-BUF; False for tools without a NIC
    purpose: Purpose
    install_hint: str  # how to install it; "" if nothing is missing

    @property
    def can_run(self) -> bool:
        """Whether it is installed."""
        return not isinstance(self.path, Unknown)

    @property
    def missing(self) -> str:
        """What it cannot do on this node, a few words; "" if it can do everything."""
        if isinstance(self.path, Unknown):
            return "not installed" if self.path.reason is Reason.NOT_THERE else str(self.path)
        if self.tool not in PERFTEST:
            return ""
        if isinstance(self.gpu_memory, Unknown):
            return f"support for GPU memory unknown: {self.gpu_memory}"
        if not self.gpu_memory:
            return "built without CUDA: host memory only"
        if isinstance(self.dmabuf, Unknown):
            return f"support for DMA-BUF unknown: {self.dmabuf}"
        return "" if self.dmabuf else "built without DMA-BUF: GPU memory via nvidia-peermem only"


Packages = Mapping[str, Maybe[Package]]
"""By program; only of programs that print no version of their own."""


def packages_of_tests(host: Host, examination: Examination) -> Packages:
    """Return the packages of the programs that print no version; slow, so ask only where it is shown."""
    tools = examination.tools
    if isinstance(tools, Unknown):
        return {}
    others = {program: tools.paths[program] for program in TEST_TOOLS if program not in PERFTEST}
    installed = {program: path for program, path in others.items() if not isinstance(path, Unknown)}
    found = packages_of(host, tuple(installed.values()))
    return {program: found[path] for program, path in installed.items()}


def inventory(examination: Examination, packages: Packages | None = None) -> tuple[Available, ...]:
    """Return every program of TEST_TOOLS, in that order."""
    return tuple(_available(examination, program, (packages or {}).get(program)) for program in TEST_TOOLS)


def _available(examination: Examination, program: str, package: Maybe[Package] | None) -> Available:
    tools, tool = examination.tools, tool_of(program)
    if isinstance(tools, Unknown):
        return Available(program, tools, tools, tools, tools, tool.purpose(program), "")
    path, build = tools.paths[program], tools.perftest
    is_missing = isinstance(path, Unknown) and path.reason is Reason.NOT_THERE
    hint = tool.install_hint(examination) if is_missing else ""
    if program not in PERFTEST:
        version = map_known(path, lambda _: _package_version(program, package))
        uses_gpu = map_known(path, lambda _: True)
        return Available(program, path, version, uses_gpu, False, tool.purpose(program), hint)
    if isinstance(path, Unknown) or not isinstance(build, Perftest):
        reason = path if isinstance(path, Unknown) else build
        assert isinstance(reason, Unknown)
        return Available(program, path, reason, reason, reason, tool.purpose(program), hint)
    dmabuf: Maybe[bool] = build.dmabuf if build.cuda is True else build.cuda
    if build.cuda is False or dmabuf is False:
        hint = GPU_BUILD_HINT
    purpose = tool.purpose(program, build.cuda is not False)
    return Available(program, path, build.version, build.cuda, dmabuf, purpose, hint)


def _package_version(program: str, package: Maybe[Package] | None) -> Maybe[str]:
    if isinstance(package, Package):
        return f"{package.version} (package {package.name})"
    if package is None:
        return Unknown(Reason.NOT_THERE, program, _NO_VERSION)
    if package.reason is Reason.NOT_THERE:
        return Unknown(Reason.NOT_THERE, program, f"it is not part of a package, and {_NO_VERSION}")
    return package
