"""Judge a node as it will be after an upgrade and a reboot: a copy of it with the new packages."""

from __future__ import annotations

from dataclasses import replace

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown, known
from probes.checks.judgment import conclude
from probes.facts.kernel import boot as boot_facts
from probes.facts.kernel.boot import BootFacts, version_key
from probes.facts.kernel.dkms import DRIVER_PACKAGES, OFED_PACKAGES, installed_for
from probes.facts.kernel.installed_modules import InstalledModules, read_installed
from probes.facts.kernel.modules import PEERMEM
from probes.facts.pci.nic_families import PLUGIN_ONLY, SLINGSHOT
from probes.facts.system.distribution import Distribution, Family
from probes.facts.system.platform import in_container
from probes.host.protocol import Host
from probes.queries.finding import Finding
from probes.setup.forecast import Forecast, KernelForecast, forecast
from probes.setup.twin.next_start import NAMES
from probes.setup.twin.upgraded import UpgradedFiles, make_upgraded, out_of_tree, own_modules
from probes.setup.upgrade.upgrade import GPU_MODULES, NIC_MODULES, Upgrade
from probes.setup.upgrade.warnings import UNDER_PEERMEM, WITHOUT_HEADERS, has_headers, warnings_of
from probes.snapshot.examination import Examination

_NVIDIA = ("nvidia", "nvidia_uvm", "nvidia_peermem")
_OTHER_PACKAGES = {
    "efa_nv_peermem": ("efa-nv-peermem",),
    "gdrdrv": ("gdrdrv", "gdrcopy"),
    "nvidia_fs": ("nvidia-fs",),
    "nv_peer_mem": ("nvidia-peer-memory", "nv_peer_mem"),
    **{name: family.dkms for family in PLUGIN_ONLY for name in family.modules},
    "cxi_eth": SLINGSHOT.dkms,
}
_ASSUMED = (
    "packages install without errors, and DKMS builds its modules wherever the headers are installed",
    "a new kernel has the options and modules of the present one",
)
_CAUSES = {
    "dkms-not-built-for-kernel": WITHOUT_HEADERS,
    "peermem-built-without-symbols": UNDER_PEERMEM,
}
_SAME_NIC = "the new OFED supports DMA-BUF if the present NIC driver does"
_RED_HAT_KERNELS = "/etc/sysconfig/kernel"
_KABI = "the packaged modules load on the new kernel too (kABI)"


@frozen
class UpgradeAdvice:
    """What an upgrade brings."""

    upgrade: Upgrade
    forecast: Forecast  # of the kernel that starts after it; its findings have what the packages show
    assumed: tuple[str, ...]


def advise(host: Host, examination: Examination, upgrade: Upgrade) -> UpgradeAdvice:
    """Judge the copy of a node on which the upgrade was installed and whose next kernel was started."""
    system = examination.distribution
    running = examination.node.kernel_release
    before = boot_facts.probe(host, system, running)
    if in_container(examination.node.platform) or isinstance(running, Unknown):
        return UpgradeAdvice(upgrade, forecast(host, examination, before), ())
    present = read_installed(host, running, NAMES)
    files, assumed = _files(host, examination, before, upgrade, present)
    versions = (upgrade.library_version, upgrade.manager_version)
    builds_modules = bool(upgrade.driver_version or upgrade.nic_modules)
    upgraded = make_upgraded(host, examination, before, files, *versions, builds_modules)
    after = boot_facts.probe(upgraded, system, running)
    newest = max(upgrade.kernels, key=version_key, default="")
    if newest and _becomes_default(host, system):
        after = replace(after, next_kernel=newest)
    release = known(after.next_kernel, newest or running)
    found = forecast(upgraded, examination, after, release, only=True)
    warnings = warnings_of(host, examination, upgrade, present)
    kernels = tuple(_with(kernel, warnings) for kernel in found.kernels)
    return UpgradeAdvice(upgrade, replace(found, kernels=kernels), (*_ASSUMED, *assumed))


def _becomes_default(host: Host, system: Maybe[Distribution]) -> bool:
    """Return whether a kernel that is installed becomes the default: Red Hat's do, also if another was saved.

    kernel-install of grubby sets saved_entry, unless UPDATEDEFAULT is "no" in /etc/sysconfig/kernel.
    """
    family = Family.OTHER if isinstance(system, Unknown) else system.family
    return family is Family.RED_HAT and "UPDATEDEFAULT=no" not in known(host.read(_RED_HAT_KERNELS), "")


def _with(kernel: KernelForecast, warnings: tuple[Finding, ...]) -> KernelForecast:
    """Return the forecast with warnings, which count for the verdict like every other finding."""
    findings = (*warnings, *_by_cause(kernel.findings, warnings))
    return replace(kernel, findings=findings, verdict=conclude(kernel.usability, findings))


def _by_cause(findings: tuple[Finding, ...], warnings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Put the findings that a warning explains below it."""
    ids = {finding.id for finding in warnings}
    causes = {effect: cause for effect, cause in _CAUSES.items() if cause in ids}
    return tuple(
        replace(finding, part_of=causes[finding.id]) if finding.id in causes else finding
        for finding in findings
    )


# Files


def _files(
    host: Host, examination: Examination, boot: BootFacts, upgrade: Upgrade, present: InstalledModules
) -> tuple[list[UpgradedFiles], tuple[str, ...]]:
    """Return what happens to the files of the kernels that may start, and what had to be assumed for it."""
    installed = [kernel.release for kernel in known(boot.kernels, ())]
    next_kernel = known(boot.next_kernel, "")
    old = dict.fromkeys(release for release in (present.release, next_kernel) if release)
    new = [release for release in upgrade.kernels if release not in (*installed, *old)]
    is_open = upgrade.new_flavor
    nic = next((change.new for change in upgrade.nic_modules if change.new), "")
    found, assumed = [], {_SAME_NIC} if nic else set()
    for release in (*old, *new):
        kernel = _Kernel(host, examination, upgrade, release, present, release in new)
        missing = kernel.missing()
        own = own_modules(missing)
        if kernel.is_new and out_of_tree(kernel.modules) - missing and not kernel.is_by_dkms("nvidia"):
            assumed.add(_KABI)
        found.append(
            UpgradedFiles(
                release,
                kernel.modules.release,
                absent=missing - own,
                own=own,
                driver_version=upgrade.driver_version,
                license="" if is_open is None else "Dual MIT/GPL" if is_open else "NVIDIA",
                has_headers=kernel.has_headers or not kernel.is_new,
                builds=kernel.is_new and kernel.has_headers,
                drops_peermem_symbols=bool(own) or bool(nic and _lacks_peer_symbols(kernel.modules)),
            )
        )
    return found, tuple(sorted(assumed))


class _Kernel:
    """A kernel after the upgrade; if it is new, its modules are those of the running one."""

    def __init__(
        self,
        host: Host,
        examination: Examination,
        upgrade: Upgrade,
        release: str,
        present: InstalledModules,
        is_new: bool,
    ) -> None:
        self._examination, self._upgrade, self._release = examination, upgrade, release
        self.is_new = is_new
        is_present = is_new or release == present.release
        self.modules = present if is_present else read_installed(host, release, NAMES)
        self.has_headers = has_headers(host, upgrade, release)

    def missing(self) -> frozenset[str]:
        """Return the modules of packages that it will not have."""
        return frozenset(
            name
            for name in out_of_tree(self.modules)
            if self._is_removed(name) or (self.is_new and not self._comes_with(name))
        )

    def is_by_dkms(self, name: str) -> bool:
        """Return whether DKMS has built a module."""
        names = _OTHER_PACKAGES.get(name) or (DRIVER_PACKAGES if name in _NVIDIA else OFED_PACKAGES)
        return installed_for(self._examination.dkms, names, self.modules.release) is True

    def _is_removed(self, name: str) -> bool:
        subject = GPU_MODULES if name in _NVIDIA else NIC_MODULES
        return name not in _OTHER_PACKAGES and self._upgrade.removes(subject)

    def _comes_with(self, name: str) -> bool:
        """Return whether a new kernel will have a module: DKMS builds it, or it comes built."""
        if name in _NVIDIA and self._upgrade.has_prebuilt_driver(self._release):
            return True
        if self.is_by_dkms(name):
            return self.has_headers
        entry = self.modules.entry(name)
        place = "" if entry is None else entry.relative
        return place.startswith(("extra/", "weak-updates/", "updates/")) and "/dkms/" not in place


def _lacks_peer_symbols(modules: InstalledModules) -> bool:
    """Return whether nvidia_peermem was built without OFED."""
    entry = modules.entry(PEERMEM)
    return entry is not None and not any(name.startswith("ib_") for name in entry.depends)
