"""What can be measured on this node, by which tool, and how to get what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from probes.bandwidth.model.meaning import Purpose, Settings, perftest_purpose, purpose
from probes.bandwidth.planning.install_hints import way_to_get
from probes.bandwidth.tools.other_commands import GdrcopySettings, NcclSettings, NvbandwidthSettings
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.system.packages import Package, packages_of
from probes.facts.system.tool_names import GDRCOPY, NVBANDWIDTH, PERFTEST, TEST_TOOLS
from probes.facts.system.tools import Perftest
from probes.host.protocol import Host
from probes.snapshot.examination import Examination

_NOT_TOLD = "it tells its version only when a test is run"
_WITHOUT_CUDA = "built without CUDA: host memory only"


@dataclass(frozen=True)
class Available:
    """One tool that measures, here or missing."""

    tool: str  # of TEST_TOOLS
    path: Maybe[str]  # NOT_THERE: not installed
    version: Maybe[str]
    gpu_memory: Maybe[bool]
    dmabuf: Maybe[bool]  # GPU memory by DMA-BUF; False for tools without a NIC
    purpose: Purpose
    way_to_get: str  # "" where nothing is missing

    @property
    def can_run(self) -> bool:
        """Whether it is installed."""
        return not isinstance(self.path, Unknown)

    @property
    def lacks(self) -> str:
        """What it cannot do here, a few words; "" where it can do all."""
        if isinstance(self.path, Unknown):
            return "not installed" if self.path.reason is Reason.NOT_THERE else str(self.path)
        if self.tool not in PERFTEST:
            return ""
        if isinstance(self.gpu_memory, Unknown):
            return f"whether it can use GPU memory is not known: {self.gpu_memory}"
        if not self.gpu_memory:
            return _WITHOUT_CUDA
        if isinstance(self.dmabuf, Unknown):
            return f"whether it can use DMA-BUF is not known: {self.dmabuf}"
        return "" if self.dmabuf else "built without DMA-BUF: GPU memory by nvidia-peermem only"


Packages = Mapping[str, Maybe[Package]]
"""By tool; of those that tell their version only when they measure."""


def packages_of_tests(host: Host, examination: Examination) -> Packages:
    """Which packages the tests came with, of those that tell no version; slow, so asked where it is shown."""
    tools = examination.tools
    if isinstance(tools, Unknown):
        return {}
    others = {tool: tools.paths[tool] for tool in TEST_TOOLS if tool not in PERFTEST}
    installed = {tool: path for tool, path in others.items() if not isinstance(path, Unknown)}
    found = packages_of(host, tuple(installed.values()))
    return {tool: found[path] for tool, path in installed.items()}


def inventory(examination: Examination, packages: Packages | None = None) -> tuple[Available, ...]:
    """Every tool of TEST_TOOLS, in that order."""
    return tuple(_available(examination, tool, packages or {}) for tool in TEST_TOOLS)


def _available(examination: Examination, tool: str, packages: Packages) -> Available:
    tools = examination.tools
    if isinstance(tools, Unknown):
        return Available(tool, tools, tools, tools, tools, _purpose(tool, True), "")
    path = tools.paths[tool]
    if tool not in PERFTEST:
        version = path if isinstance(path, Unknown) else _of_package(tool, packages.get(tool))
        uses_gpu: Maybe[bool] = path if isinstance(path, Unknown) else True
        found = Available(tool, path, version, uses_gpu, False, _purpose(tool, True), "")
    else:
        build = tools.perftest
        if isinstance(path, Unknown) or isinstance(build, Unknown):
            lost = path if isinstance(path, Unknown) else build
            assert isinstance(lost, Unknown)
            found = Available(tool, path, lost, lost, lost, _purpose(tool, True), "")
        else:
            found = _perftest(tool, path, build)
    is_missing = isinstance(path, Unknown) and path.reason is Reason.NOT_THERE
    lacks = is_missing or (tool in PERFTEST and (found.gpu_memory is False or found.dmabuf is False))
    if not lacks:
        return found
    way = way_to_get(examination, tool, is_missing)
    return Available(
        found.tool, found.path, found.version, found.gpu_memory, found.dmabuf, found.purpose, way
    )


def _of_package(tool: str, package: Maybe[Package] | None) -> Maybe[str]:
    if isinstance(package, Package):
        return f"{package.version} (package {package.name})"
    if package is None:
        return Unknown(Reason.NOT_THERE, tool, _NOT_TOLD)
    is_of_none = package.reason is Reason.NOT_THERE
    return Unknown(Reason.NOT_THERE, tool, f"of no package, and {_NOT_TOLD}") if is_of_none else package


def _perftest(tool: str, path: str, build: Perftest) -> Available:
    dmabuf: Maybe[bool] = build.dmabuf if build.cuda is True else build.cuda
    return Available(
        tool, path, build.version, build.cuda, dmabuf, _purpose(tool, build.cuda is not False), ""
    )


def _purpose(tool: str, with_gpu: bool) -> Purpose:
    """For the tool as it is mostly called; what a single test proves, its own settings say."""
    if tool in PERFTEST:
        return perftest_purpose(tool, with_gpu)
    settings: Settings
    if tool in GDRCOPY:
        settings = GdrcopySettings(0, tool)
    elif tool == NVBANDWIDTH:
        settings = NvbandwidthSettings()
    else:
        settings = NcclSettings((), tool)
    return purpose(settings)
