"""Judge a node as it will be after an upgrade and a reboot: a copy of it with the new packages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from probes.base.data_files import read_toml
from probes.base.evidence import Evidence, Severity
from probes.base.frozen import frozen
from probes.base.plan import Plan, make_plan
from probes.base.unknown import Maybe, Unknown, is_there, known
from probes.checks.judgment import conclude
from probes.facts.kernel import boot as boot_facts
from probes.facts.kernel.boot import MODULES_DIRECTORY, BootFacts, version_key
from probes.facts.kernel.installed_modules import InstalledModules, read_installed
from probes.facts.kernel.module_files import DRIVER_PACKAGES, OFED_PACKAGES, installed_for
from probes.facts.kernel.modules import PEERMEM
from probes.facts.pci.nic_families import PLUGIN_ONLY, SLINGSHOT
from probes.facts.system.packages import Distribution, Family
from probes.facts.system.platform import in_container
from probes.host.protocol import Host
from probes.plans.driver import rebuild_steps
from probes.plans.packages import header_step
from probes.queries.finding import Finding, Status
from probes.queries.modules import is_present, module_of
from probes.setup.forecast import Forecast, forecast
from probes.setup.twin.next_start import NAMES
from probes.setup.twin.upgraded import UpgradedFiles, make_upgraded, out_of_tree, own_modules
from probes.setup.upgrade.upgrade import GPU_MODULES, NIC_MODULES, Upgrade
from probes.snapshot.examination import Examination

# What the packages of an upgrade show by themselves: what it commonly breaks, and how to prevent it.
#
# nvidia_peermem has to be rebuilt when OFED is replaced: NVIDIA driver README, "GPUDirect RDMA Peer Memory
# Client". DKMS builds for a new kernel only if its headers are installed (dkms(8)). libcuda and the loaded
# kernel module must have the same version.

WITHOUT_HEADERS = "upgrade-kernel-without-headers"
UNDER_PEERMEM = "upgrade-ofed-under-peermem"


def has_headers(host: Host, upgrade: Upgrade, release: str) -> bool:
    """Return whether the headers of a kernel are there after the upgrade."""
    return (
        upgrade.has_headers(release) or is_there(host.names(f"{MODULES_DIRECTORY}/{release}/build")) is True
    )


def _without_headers(
    host: Host, examination: Examination, upgrade: Upgrade, present: InstalledModules
) -> Iterator[Finding]:
    """Find new kernels for which DKMS cannot build the drivers."""
    modules = () if isinstance(examination.dkms, Unknown) else examination.dkms.modules
    ours = [module.name for module in modules if present.release in module.installed]
    gpu, nic = (sorted(set(names).intersection(ours)) for names in (DRIVER_PACKAGES, OFED_PACKAGES))
    new = [kernel for kernel in upgrade.kernels if kernel != present.release]
    without = [kernel for kernel in new if not has_headers(host, upgrade, kernel)]
    if not without or not (gpu or nic):
        return
    fix = tuple(header_step(examination, kernel) for kernel in without)
    source = _source(upgrade)
    drivers = "the GPU driver and the NIC driver" if gpu and nic else f"the {'GPU' if gpu else 'NIC'} driver"
    yield _finding(
        WITHOUT_HEADERS,
        Severity.CRITICAL if gpu else Severity.WARNING,
        (
            *(Evidence(source, f"installs kernel {kernel}, and no headers for it") for kernel in without),
            *(Evidence("/var/lib/dkms", f"{name} is built on this node") for name in (*gpu, *nic)),
        ),
        Plan("Install the headers with the kernel", fix),
        drivers=drivers,
        impact="gpu" if gpu else "nic",
    )


def _under_peermem(
    examination: Examination, upgrade: Upgrade, present: InstalledModules
) -> Iterator[Finding]:
    """Find that OFED is replaced and the GPU driver's modules are not built again."""
    changed = upgrade.nic_modules
    entry = present.entry(PEERMEM)
    if not changed or entry is None or upgrade.driver_version:
        return
    module = module_of(examination, PEERMEM)
    is_loaded = not isinstance(module, Unknown) and is_present(module)
    direct = examination.node.gpudirect
    uses = not isinstance(direct, Unknown) and direct.dmabuf.usable is not True and is_loaded
    title, steps = "Rebuild the GPU driver after the upgrade", rebuild_steps(examination)
    yield _finding(
        UNDER_PEERMEM,
        Severity.WARNING if uses else Severity.NOTE,
        (
            *(Evidence(_source(upgrade), _words(change.name, change.old, change.new)) for change in changed),
            Evidence(f"modinfo -n {PEERMEM}", entry.path),
        ),
        Plan(title, steps, note="For a new kernel, use its release."),
        impact="used" if uses else "unused",
    )


def _until_reboot(examination: Examination, upgrade: Upgrade) -> Iterator[Finding]:
    """Find that the driver's libraries will differ from the loaded module until the reboot."""
    gpus = examination.node.gpus
    loaded = "" if isinstance(gpus, Unknown) or gpus.driver is None else known(gpus.driver.version, "")
    version = upgrade.library_version
    if not loaded or not version or version == loaded:
        return
    drain = "Drain the node before the upgrade, and reboot it right after."
    yield _finding(
        "upgrade-needs-reboot",
        Severity.WARNING,
        (Evidence(_source(upgrade), f"libcuda {version}"), Evidence("/sys/module/nvidia/version", loaded)),
        make_plan("Reboot right after the upgrade", drain, needs_reboot=True),
        new=version,
        old=loaded,
    )


def _source(upgrade: Upgrade) -> str:
    return upgrade.command or "the package manager's output"


def _words(name: str, old: str, new: str) -> str:
    """Return "NAME 1 → 2", "NAME 2 is installed", "NAME is removed"."""
    if not new:
        return f"{name} is removed"
    return f"{name} {old} → {new}" if old else f"{name} {new}"


def _finding(
    id_: str, severity: Severity, evidence: tuple[Evidence, ...], fix: Plan, impact: str = "", **words: str
) -> Finding:
    """Return the finding of findings.toml with this id; `impact`: which one, if it has several."""
    row = read_toml(__package__, "findings.toml")[id_]
    shown = (row["title"], evidence, row["cause"].format(**words), fix, row["reference"])
    felt = row["impact"][impact] if impact else row["impact"]
    is_path = id_ == UNDER_PEERMEM
    return Finding(id_, "upgrade", severity, Status.FOUND, *shown, impact=felt, data_path=is_path)


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
_CAUSES = {"dkms-not-built-for-kernel": WITHOUT_HEADERS, "peermem-built-without-symbols": UNDER_PEERMEM}
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
    warnings = (
        *_without_headers(host, examination, upgrade, present),
        *_under_peermem(examination, upgrade, present),
        *_until_reboot(examination, upgrade),
    )
    kernels = []
    for kernel in found.kernels:  # warnings count for the verdict like every other finding
        findings = (*warnings, *_by_cause(kernel.findings, warnings))
        verdict = conclude(kernel.usability, findings)
        kernels.append(replace(kernel, findings=findings, verdict=verdict))
    return UpgradeAdvice(upgrade, replace(found, kernels=tuple(kernels)), (*_ASSUMED, *assumed))


def _becomes_default(host: Host, system: Maybe[Distribution]) -> bool:
    """Return whether a kernel that is installed becomes the default: Red Hat's do, also if another was saved.

    kernel-install of grubby sets saved_entry, unless UPDATEDEFAULT is "no" in /etc/sysconfig/kernel.
    """
    family = Family.OTHER if isinstance(system, Unknown) else system.family
    return family is Family.RED_HAT and "UPDATEDEFAULT=no" not in known(host.read(_RED_HAT_KERNELS), "")


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
