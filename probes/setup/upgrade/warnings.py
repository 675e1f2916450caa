"""What the packages of an upgrade show by themselves: what it commonly breaks, and how to prevent it.

nvidia_peermem has to be rebuilt when OFED is replaced: NVIDIA driver README, "GPUDirect RDMA Peer Memory
Client". DKMS builds for a new kernel only if its headers are installed (dkms(8)). libcuda and the loaded
kernel module must have the same version.
"""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.plan import Plan, make_plan
from probes.base.unknown import Unknown, is_there, known
from probes.facts.kernel.boot import MODULES_DIRECTORY
from probes.facts.kernel.dkms import DRIVER_PACKAGES, OFED_PACKAGES
from probes.facts.kernel.installed_modules import InstalledModules
from probes.facts.kernel.modules import PEERMEM
from probes.host.protocol import Host
from probes.plans.driver import rebuild_steps
from probes.plans.packages import header_step
from probes.queries.finding import Evidence, Finding, Severity, Status
from probes.queries.modules import is_present, module_of
from probes.setup.upgrade.upgrade import Upgrade
from probes.snapshot.examination import Examination

WITHOUT_HEADERS = "upgrade-kernel-without-headers"
UNDER_PEERMEM = "upgrade-ofed-under-peermem"
_PEERMEM_README = "NVIDIA driver README, GPUDirect RDMA Peer Memory Client"


def warnings_of(
    host: Host,
    examination: Examination,
    upgrade: Upgrade,
    present: InstalledModules,
) -> tuple[Finding, ...]:
    """Return the warnings; `present`: the modules of the running kernel."""
    return (
        *_without_headers(host, examination, upgrade, present),
        *_under_peermem(examination, upgrade, present),
        *_until_reboot(examination, upgrade),
    )


def has_headers(host: Host, upgrade: Upgrade, release: str) -> bool:
    """Return whether the headers of a kernel are there after the upgrade."""
    return (
        upgrade.has_headers(release) or is_there(host.names(f"{MODULES_DIRECTORY}/{release}/build")) is True
    )


def _without_headers(
    host: Host,
    examination: Examination,
    upgrade: Upgrade,
    present: InstalledModules,
) -> Sequence[Finding]:
    """Find new kernels for which DKMS cannot build the drivers."""
    modules = () if isinstance(examination.dkms, Unknown) else examination.dkms.modules
    ours = [module.name for module in modules if present.release in module.installed]
    gpu, nic = (sorted(set(names).intersection(ours)) for names in (DRIVER_PACKAGES, OFED_PACKAGES))
    new = [kernel for kernel in upgrade.kernels if kernel != present.release]
    without = [kernel for kernel in new if not has_headers(host, upgrade, kernel)]
    if not without or not (gpu or nic):
        return ()
    fix = tuple(header_step(examination, kernel) for kernel in without)
    source = _source(upgrade)
    drivers = "the GPU driver and the NIC driver" if gpu and nic else f"the {'GPU' if gpu else 'NIC'} driver"
    own_nic = "After the reboot, the kernel's own NIC driver is used, and nvidia_peermem does not load."
    return (
        _finding(
            WITHOUT_HEADERS,
            Severity.CRITICAL if gpu else Severity.WARNING,
            "The new kernel comes without headers, so DKMS cannot build the drivers",
            f"DKMS builds {drivers} for a new kernel only if its headers are installed.",
            "After the reboot, the node has no GPU driver." if gpu else own_nic,
            (
                *(Evidence(source, f"installs kernel {kernel}, and no headers for it") for kernel in without),
                *(Evidence("/var/lib/dkms", f"{name} is built on this node") for name in (*gpu, *nic)),
            ),
            Plan("Install the headers with the kernel", fix),
            "dkms(8)",
        ),
    )


def _under_peermem(
    examination: Examination, upgrade: Upgrade, present: InstalledModules
) -> Sequence[Finding]:
    """Find that OFED is replaced and the GPU driver's modules are not built again."""
    changed = upgrade.nic_modules
    entry = present.entry(PEERMEM)
    if not changed or entry is None or upgrade.driver_version:
        return ()
    module = module_of(examination, PEERMEM)
    is_loaded = not isinstance(module, Unknown) and is_present(module)
    direct = examination.node.gpudirect
    uses = not isinstance(direct, Unknown) and direct.dmabuf.usable is not True and is_loaded
    evidence = (
        *(Evidence(_source(upgrade), _words(change.name, change.old, change.new)) for change in changed),
        Evidence(f"modinfo -n {PEERMEM}", entry.path),
    )
    return (
        _finding(
            UNDER_PEERMEM,
            Severity.WARNING if uses else Severity.NOTE,
            "OFED is replaced under nvidia_peermem, which is not rebuilt",
            "nvidia_peermem was built with the symbols of the present OFED. The upgrade replaces OFED and not"
            " the GPU driver, so the module may not load with the new OFED.",
            "If it does not load, no path is usable." if uses else "DMA-BUF does not need nvidia_peermem.",
            evidence,
            Plan(
                "Rebuild the GPU driver after the upgrade",
                rebuild_steps(examination),
                note="For a new kernel, use its release.",
            ),
            _PEERMEM_README,
            data_path=True,
        ),
    )


def _until_reboot(examination: Examination, upgrade: Upgrade) -> Sequence[Finding]:
    """Find that the driver's libraries will differ from the loaded module until the reboot."""
    gpus = examination.node.gpus
    loaded = "" if isinstance(gpus, Unknown) or gpus.driver is None else known(gpus.driver.version, "")
    version = upgrade.library_version
    if not loaded or not version or version == loaded:
        return ()
    return (
        _finding(
            "upgrade-needs-reboot",
            Severity.WARNING,
            "No CUDA program starts between the upgrade and the reboot",
            f"The upgrade installs libcuda {version}; driver {loaded} stays loaded until the node restarts.",
            "New jobs fail with “driver/library version mismatch” until then; running jobs go on.",
            (
                Evidence(_source(upgrade), f"libcuda {version}"),
                Evidence("/sys/module/nvidia/version", loaded),
            ),
            make_plan(
                "Reboot right after the upgrade",
                "Drain the node before the upgrade, and reboot it right after.",
                needs_reboot=True,
            ),
            "NVIDIA driver README, Known Issues",
        ),
    )


def _source(upgrade: Upgrade) -> str:
    return upgrade.command or "the package manager's output"


def _words(name: str, old: str, new: str) -> str:
    """Return "NAME 1 → 2", "NAME 2 is installed", "NAME is removed"."""
    if not new:
        return f"{name} is removed"
    return f"{name} {old} → {new}" if old else f"{name} {new}"


def _finding(
    name: str,
    severity: Severity,
    title: str,
    cause: str,
    impact: str,
    evidence: tuple[Evidence, ...],
    fix: Plan,
    reference: str,
    data_path: bool = False,
) -> Finding:
    shown = (title, evidence, cause, fix, reference)
    return Finding(name, "upgrade", severity, Status.FOUND, *shown, impact=impact, data_path=data_path)
