"""Forecast a node: start a copy of it with each installed kernel, and judge the copy like any node."""

from __future__ import annotations

from dataclasses import replace

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.checks.judgment import exit_status as status_of
from probes.checks.judgment import judge
from probes.facts.kernel.boot import MODULES_DIRECTORY, BootFacts, version_key
from probes.facts.kernel.installed_modules import installed_releases
from probes.facts.kernel.next_boot import read_next_boot
from probes.facts.kernel.release import is_release
from probes.facts.system.platform import in_container
from probes.host.protocol import Host
from probes.queries.finding import Finding
from probes.setup.twin.build import start_twin
from probes.snapshot.examination import Examination, examine
from probes.snapshot.verdict import State, Usability, Verdict

MAX_JUDGED = 4  # kernels: each takes as long as an examination
_LIMITS = (
    "the contents of the boot image",
    "firmware settings, and registers and MTUs that were set by hand since the last boot",
    "whether a device that fails now works again after the boot",
    "modules that Slurm prologs, pods and other programs load later",
)
_WORDS = {
    State.ACTIVE: "will",
    State.READY: "will",
    State.DEGRADED: "at risk",
    State.BROKEN: "will not",
    State.UNKNOWN: "unknown",
    State.NOT_APPLICABLE: "not applicable",
}


@frozen
class KernelForecast:
    """What to expect of one kernel."""

    release: str
    is_running: bool
    is_next: Maybe[bool]  # the boot loader starts it by default
    verdict: Verdict  # of the copy that was started with it, findings counted
    findings: tuple[Finding, ...]
    usability: Usability  # which path the copy can use, before any finding
    missing: str = ""  # what was assumed because it could not be read, in words

    @property
    def outlook(self) -> str:
        """Return the verdict as an expectation: "will", "at risk", "will not", "unknown"."""
        return _WORDS[self.verdict.state]


@frozen
class Forecast:
    """The forecast of a node or an image."""

    kernels: tuple[KernelForecast, ...]  # the newest first
    next_kernel: Maybe[str]  # what the boot loader starts by default
    not_applicable: str = ""  # why there is nothing to forecast here
    not_known: tuple[str, ...] = ()  # what no file shows
    installed: tuple[str, ...] = ()  # all kernels, also those that were not judged

    def chosen(self, release: str = "") -> KernelForecast | None:
        """Return the kernel with this release; without one the next kernel, else the running or newest."""
        if release:
            return next((kernel for kernel in self.kernels if kernel.release == release), None)
        for wanted in (lambda kernel: kernel.is_next is True, lambda kernel: kernel.is_running):
            for kernel in self.kernels:
                if wanted(kernel):
                    return kernel
        return self.kernels[0] if self.kernels else None


def exit_status(kernel: KernelForecast | None) -> int:
    """Return the status for monitoring: 0 will, 1 at risk, 2 will not, 3 unknown or not applicable."""
    return 3 if kernel is None else status_of(kernel.verdict)


def forecast(
    host: Host,
    examination: Examination,
    boot: Maybe[BootFacts],
    release: str = "",
    disk: Host | None = None,
    only: bool = False,
) -> Forecast:
    """Judge up to four installed kernels: the next, the running, `release`, and the newest others.

    `only`: judge `release` alone. `disk`: the files of an image, which then starts on the hardware of `host`.
    """
    next_kernel = boot if isinstance(boot, Unknown) else boot.next_kernel
    if disk is None and in_container(examination.node.platform):
        return Forecast(
            (), next_kernel, "this is a container, which does not boot a kernel; run gdrtop on the node"
        )
    installed = _releases(host if disk is None else disk, boot)
    if isinstance(installed, Unknown) or not installed:
        why = f" ({installed})" if isinstance(installed, Unknown) else ""
        return Forecast((), next_kernel, f"no installed kernel can be read{why}")
    running = examination.node.kernel_release if disk is None else Unknown(Reason.NOT_THERE)
    first = [name for name in (release, known(next_kernel, ""), known(running, "")) if name in installed]
    judged = (release,) if only else tuple(dict.fromkeys((*first, *installed)))[:MAX_JUDGED]
    kernels = []
    for name in [name for name in installed if name in judged]:
        twin = start_twin(host, examination, boot, name, disk)
        after = replace(examine(twin), next_boot=read_next_boot(host if disk is None else disk, boot, name))
        judgment = judge(after)
        kernels.append(
            KernelForecast(
                release=name,
                is_running=name == running,
                is_next=next_kernel if isinstance(next_kernel, Unknown) else name == next_kernel,
                verdict=judgment.verdict,
                findings=judgment.findings,
                usability=after.usability,
                missing=twin.start.missing,
            )
        )
    return Forecast(tuple(kernels), next_kernel, not_known=_LIMITS, installed=installed)


def _releases(disk: Host, boot: Maybe[BootFacts]) -> Maybe[tuple[str, ...]]:
    """Return the kernels with an image; where no image is seen, those with modules."""
    images = boot if isinstance(boot, Unknown) else boot.kernels
    found = tuple(kernel.release for kernel in known(images, ()))
    indexed = installed_releases(disk)
    if found or (not isinstance(indexed, Unknown) and indexed):
        return found or known(indexed, ())
    names = known(disk.names(MODULES_DIRECTORY), ())  # without an index of depmod, but a kernel's modules
    return tuple(sorted(filter(is_release, names), key=version_key, reverse=True)) or indexed
