"""Forecast a node: start a copy of it with each installed kernel, and judge the copy like any node."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from probes.base.evidence import Evidence, Severity
from probes.base.frozen import frozen
from probes.base.plan import make_plan
from probes.base.text import plural
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.checks.judgment import conclude, judge
from probes.checks.judgment import exit_status as status_of
from probes.facts.gpudirect import hardware_of
from probes.facts.kernel import boot
from probes.facts.kernel.boot import MODULES_DIRECTORY, BootFacts, read_next_boot, version_key
from probes.facts.kernel.installed_modules import installed_releases
from probes.facts.kernel.release import is_release
from probes.facts.system import packages
from probes.facts.system.platform import in_container
from probes.host.protocol import Host
from probes.queries.finding import Finding, Status
from probes.setup.twin.build import start_twin, with_disk
from probes.snapshot.examination import Examination, examine
from probes.snapshot.verdict import State, Verdict

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
    host: Host, examination: Examination, boot: Maybe[BootFacts], release: str = "", disk: Host | None = None
) -> Forecast:
    """Judge up to four installed kernels: the next, the running, `release`, and the newest others.

    `disk`: the files of an image, which then starts on the hardware of `host`.
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
    judged = tuple(dict.fromkeys((*first, *installed)))[:MAX_JUDGED]
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


# Check an operating-system or container image: start a copy of it on the hardware of another node.

# What checks of these areas look at is in a container too; services, limits and drivers are the node's.
_CONTAINER_AREAS = ("nccl", "tools")
_NOT_KNOWN = (
    "firmware settings, Secure Boot and its keys",
    "ports, links and the fabric of the real node",
    "what is installed or mounted when the image starts",
)
_PROGRAMS = ("/bin/sh", "/usr/bin/env", "/bin/busybox", "/usr/bin/bash", "/usr/bin/python3")
_ELF_HEADER_BYTES = 20
_MACHINES = {0x3E: "x86_64", 0xB7: "aarch64"}  # EM_X86_64, EM_AARCH64


class ImageKind(Enum):
    """What an image is."""

    SYSTEM = "operating-system image"
    CONTAINER = "container image"  # it has no kernel


@frozen
class ImageCheck:
    """What an image will and will not do on the assumed hardware."""

    kind: ImageKind
    hardware: str  # name of the node that is assumed
    product: str  # "8 GPUs, NVIDIA H100 SXM5 80GB; NICs: mlx5_core"
    forecast: Forecast  # without kernels for a container image
    verdict: Verdict
    findings: tuple[Finding, ...]
    not_known: tuple[str, ...] = _NOT_KNOWN


def check_image(image: Host, hardware: Host) -> ImageCheck:
    """Judge the files of `image` for the devices of `hardware`: a simulated node or a recorded one."""
    examination = examine(hardware)
    label, product = hardware.origin.label, _product(examination)
    kernels = [name for name in known(image.names("/boot"), ()) if name.startswith(("vmlinuz-", "vmlinux-"))]
    if kernels or any(map(is_release, known(image.names(MODULES_DIRECTORY), ()))):
        system = packages.probe(image)
        no_kernel = Unknown(Reason.NOT_THERE, "/proc/sys/kernel/osrelease", "an image does not run a kernel")
        found = forecast(hardware, examination, boot.probe(image, system, no_kernel), disk=image)
        kernel = found.chosen()
        verdict = Verdict(State.UNKNOWN, None, 0, 0, found.not_applicable, critical=0, warnings=0)
        of_kernel: tuple[Finding, ...] = ()
        if kernel is not None:
            verdict, of_kernel = kernel.verdict, kernel.findings
        return ImageCheck(ImageKind.SYSTEM, label, product, found, verdict, of_kernel)
    return _container(image, hardware, examination, label, product)


def _container(image: Host, hardware: Host, examination: Examination, label: str, product: str) -> ImageCheck:
    """Run the programs of a container image on the node as it is after its next start: without jobs."""
    release = known(examination.node.kernel_release, "")
    boot_facts = boot.probe(hardware, examination.distribution, examination.node.kernel_release)
    node = start_twin(hardware, examination, boot_facts, release)
    inside = examine(with_disk(node, examination, image))
    found = (
        *_of_another_architecture(image, examination),
        *(finding for finding in judge(inside).findings if finding.area in _CONTAINER_AREAS),
    )
    verdict = conclude(examine(node).usability, found)
    none = Forecast((), release, "a container image has no kernel")
    return ImageCheck(ImageKind.CONTAINER, label, product, none, verdict, found)


def _of_another_architecture(image: Host, examination: Examination) -> tuple[Finding, ...]:
    """Find that the programs of a container image are for other CPUs, by the ELF header of one (elf(5))."""
    platform = examination.node.platform
    node = Unknown(Reason.NOT_RECORDED) if isinstance(platform, Unknown) else platform.cpu_architecture
    for path in _PROGRAMS:
        header = image.read_range(path, 0, _ELF_HEADER_BYTES)
        if isinstance(header, Unknown) or header.content[:4] != b"\x7fELF":
            continue
        own = _MACHINES.get(int.from_bytes(header.content[18:20], "little"), "")
        if isinstance(node, Unknown) or not own or own == node:
            return ()
        fix = make_plan(
            "Build the image for this node", f"Use the image for {node} (docker pull --platform)."
        )
        evidence = (Evidence(path, f"a program for {own}"), Evidence("CPU of the node", node))
        finding = Finding(
            "image-wrong-architecture",
            _CONTAINER_AREAS[1],
            Severity.CRITICAL,
            Status.FOUND,
            f"The image is for {own}, and the node is {node}",
            evidence,
            "The node's CPUs cannot run its programs.",
            fix,
            "elf(5), e_machine",
            impact="No program of the image starts (exec format error).",
            takes=examination.usability.gpus,
        )
        return (finding,)
    return ()


def _product(examination: Examination) -> str:
    gpus = examination.node.gpus
    names = [] if isinstance(gpus, Unknown) else [gpu.name for gpu in gpus.gpus]
    drivers = sorted({known(nic.driver, "") for nic in hardware_of(examination.node.rdma)} - {""})
    kinds = f" ({', '.join(sorted(set(names)))})" if names else ""
    return f"{plural(len(names), 'GPU')}{kinds}; NICs: {', '.join(drivers) or 'none'}"
