"""Forecast a node: for every installed kernel, is GPUDirect RDMA there after a reboot?"""

from __future__ import annotations

from probes.base.unknown import Maybe, Unknown, known
from probes.facts.kernel.boot import BootFacts
from probes.facts.kernel.installed_modules import MAX_KERNELS, installed_releases
from probes.facts.system.platform import in_container
from probes.host.protocol import Host
from probes.setup.forecast.boot_rows import boot_rows
from probes.setup.forecast.loading_rows import loading_rows
from probes.setup.forecast.model import Forecast, KernelForecast
from probes.setup.forecast.module_rows import module_rows
from probes.setup.forecast.next_start import Hardware, Start, hardware, read_keys, read_start
from probes.setup.forecast.path_rows import path_rows
from probes.snapshot.examination import Examination

_LIMITS = (
    "the contents of the boot image",
    "firmware settings",
    "device failures during the boot",
    "modules that Slurm prologs, pods and other programs load later",
)


def forecast(host: Host, examination: Examination, boot: Maybe[BootFacts], release: str = "") -> Forecast:
    """Judge every installed kernel, or only `release`."""
    next_kernel = boot if isinstance(boot, Unknown) else boot.next_kernel
    reason = _not_applicable(examination)
    devices = hardware(examination)
    if reason or isinstance(devices, Unknown):
        return Forecast((), next_kernel, reason or f"the devices are unknown ({devices})")
    if not devices.gpus:
        return Forecast((), next_kernel, "there is no NVIDIA GPU")
    if not devices.families and not devices.others:
        return Forecast((), next_kernel, "there is no RDMA NIC")
    releases = _releases(host, boot)
    if isinstance(releases, Unknown):
        return Forecast((), next_kernel, f"no installed kernel can be read ({releases})")
    keys = read_keys(host, boot)
    kernels = tuple(
        _kernel(examination, devices, read_start(host, examination, boot, devices, keys, name), next_kernel)
        for name in releases
        if release in ("", name)
    )
    return Forecast(kernels, next_kernel, not_known=_LIMITS)


def _not_applicable(examination: Examination) -> str:
    """Return why this node has no next boot of its own, or can never use GPUDirect RDMA."""
    if in_container(examination.node.platform):
        return "this is a container, which boots no kernel; run gdrtop on the node"
    direct = examination.node.gpudirect
    return "" if isinstance(direct, Unknown) else direct.by_design


def _releases(host: Host, boot: Maybe[BootFacts]) -> Maybe[tuple[str, ...]]:
    """Return the kernels with an image; where no image is seen, those with modules. At most 16."""
    images = boot if isinstance(boot, Unknown) else boot.kernels
    with_image = tuple(kernel.release for kernel in known(images, ()))
    return with_image[:MAX_KERNELS] if with_image else installed_releases(host)


def _kernel(
    examination: Examination, devices: Hardware, start: Start, next_kernel: Maybe[str]
) -> KernelForecast:
    release = start.modules.release
    return KernelForecast(
        release=release,
        is_running=start.is_running,
        is_next=next_kernel if isinstance(next_kernel, Unknown) else next_kernel == release,
        rows=(
            *module_rows(examination, devices, start),
            *path_rows(examination, devices, start),
            *loading_rows(examination, devices, start),
            *boot_rows(examination, start),
        ),
    )
