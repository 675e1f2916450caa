"""The kernel modules of the ladder: loaded or not, and which settings block them."""

from __future__ import annotations

from probes.base.plan import Plan, Step, instruction
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.module_blockers import explain, loads_nothing
from probes.facts.kernel.modules import KernelModule, ModuleFacts, ModuleState
from probes.plans.common import REBOOT_ENDS_JOBS, reboot_step
from probes.plans.load_modules import blocker_of, load_plan, load_step
from probes.queries.evidence_list import SHOWN, join_limited
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, passed, unknown, unknown_without
from probes.queries.module_need import impact_of_missing, is_spare, refused_by, severity_of_missing
from probes.queries.modules import (
    LINE_LIMIT,
    MODULES,
    PCI,
    PEERMEM,
    gpu_functions,
    is_present,
    mlx4_functions,
    mlx5_functions,
    mlx_functions,
    module_of,
    no_gpu_or_nic,
    state_evidence,
    unread_rules,
)
from probes.queries.references import DRIVER_GUIDE
from probes.snapshot.examination import Examination

AREA = Area("modules")

_RDMA_MANUAL = "Linux Documentation/infiniband/user_verbs.rst and rdma-core README.md"
_MLX5_MANUAL = "Linux Documentation/networking/device_drivers/ethernet/mellanox/mlx5"
_MLX4_MANUAL = "Linux drivers/net/ethernet/mellanox/mlx4 and drivers/infiniband/hw/mlx4"
_WATCHED = (
    "ib_core",
    "ib_uverbs",
    "mlx4_core",
    "mlx4_ib",
    "mlx5_core",
    "mlx5_ib",
    "nvidia",
    "nvidia_uvm",
    PEERMEM,
)
_NO_PROGRAM = "No program can use RDMA: /dev/infiniband/uverbsN is missing."
_PACKAGE = "the kernel's extra modules, or OFED"


def _absent(
    examination: Examination,
    name: str,
    devices: Maybe[tuple[str, ...]],
    why: str,
    package: str = _PACKAGE,
    follows: tuple[str, ...] = (),
) -> Outcome:
    """Report a module that these devices need and that is not loaded; `follows`: ids of possible roots."""
    if not isinstance(devices, Unknown) and not devices:
        return passed(Evidence("/sys/bus/pci/devices", f"no device here needs {name}"))
    module = module_of(examination, name)
    if isinstance(module, Unknown):
        return unknown_without(MODULES, module)
    if is_present(module):
        return passed(state_evidence(module))
    if isinstance(devices, Unknown):
        return unknown_without(PCI, devices, state_evidence(module))
    if module.state is not ModuleState.NOT_LOADED:
        return unknown(f"needs a moment: {name} is being loaded or unloaded", state_evidence(module))
    facts = examination.node.modules
    obstacle = "" if isinstance(facts, Unknown) else explain(facts, name)
    known_reason = bool(obstacle) and not obstacle.startswith("on disk")
    return found(
        f"{name} is not loaded: {obstacle[:LINE_LIMIT]}." if known_reason else why,
        state_evidence(module),
        Evidence("/sys/bus/pci/devices", join_limited(devices)),
        fix=_bring(examination, module, package),
        devices=(name, *devices[:SHOWN]),
        part_of=(*follows, *refused_by(examination, name)),
    )


def _bring(examination: Examination, module: KernelModule, package: str) -> Plan | None:
    """Return a plan that loads or installs a module; None: something else blocks it."""
    if blocker_of(examination, module.name) is None:
        return load_plan(examination, module.name)
    if not isinstance(module.on_disk, Unknown) or module.on_disk.reason is not Reason.NOT_THERE:
        return None
    return Plan(
        f"Install {module.name}",
        (instruction(f"Install {package} for the running kernel"), load_step(examination, module.name)),
    )


@AREA.check(
    "ib-core-not-loaded",
    Severity.CRITICAL,
    "ib_core is not loaded",
    _RDMA_MANUAL,
    ok="ib_core is loaded",
    impact="This node has no RDMA: no RDMA device and no port exists.",
)
def ib_core_not_loaded(examination: Examination) -> Outcome:
    """Check the RDMA stack itself."""
    why = "The driver of an RDMA card loads ib_core. Nothing has loaded it on this node."
    follows = ("mlx5-core-not-loaded", "mlx4-core-not-loaded")
    return _absent(examination, "ib_core", mlx_functions(examination), why, follows=follows)


@AREA.check(
    "mlx5-core-not-loaded",
    Severity.CRITICAL,
    "mlx5_core is not loaded",
    _MLX5_MANUAL,
    ok="mlx5_core is loaded, or no card needs it",
    impact="ConnectX and BlueField cards do not work at all: no network interface and no RDMA device.",
)
def mlx5_core_not_loaded(examination: Examination) -> Outcome:
    """Check the driver of ConnectX-4 and newer, Connect-IB and BlueField cards."""
    why = "udev loads mlx5_core for these cards unless something prevents it."
    return _absent(examination, "mlx5_core", mlx5_functions(examination), why)


@AREA.check(
    "mlx5-ib-not-loaded",
    Severity.CRITICAL,
    "mlx5_ib is not loaded",
    _MLX5_MANUAL,
    ok="mlx5_ib is loaded, or no card needs it",
    impact="The cards are network interfaces only. Without RDMA devices no program can use RDMA.",
)
def mlx5_ib_not_loaded(examination: Examination) -> Outcome:
    """Check the module that makes RDMA devices of mlx5 cards."""
    why = "mlx5_core asks for mlx5_ib when it finds a card. On this node that did not happen."
    follows = ("mlx5-core-not-loaded", "ib-core-not-loaded", "ib-uverbs-not-loaded")
    return _absent(examination, "mlx5_ib", mlx5_functions(examination), why, follows=follows)


@AREA.check(
    "mlx4-core-not-loaded",
    Severity.CRITICAL,
    "mlx4_core is not loaded",
    _MLX4_MANUAL,
    ok="mlx4_core is loaded, or no card needs it",
    impact="ConnectX-3 and older cards do not work at all: no network interface and no RDMA device.",
)
def mlx4_core_not_loaded(examination: Examination) -> Outcome:
    """Check the driver of ConnectX-3 and older cards."""
    why = "udev loads mlx4_core for these cards unless something prevents it."
    return _absent(examination, "mlx4_core", mlx4_functions(examination), why)


@AREA.check(
    "mlx4-ib-not-loaded",
    Severity.CRITICAL,
    "mlx4_ib is not loaded",
    _MLX4_MANUAL,
    ok="mlx4_ib is loaded, or no card needs it",
    impact="ConnectX-3 cards have no RDMA device: neither verbs nor GPUDirect RDMA works with them.",
)
def mlx4_ib_not_loaded(examination: Examination) -> Outcome:
    """Check the module that makes RDMA devices of ConnectX-3 and older cards."""
    why = "mlx4_core asks for mlx4_ib when it finds a card. On this node that did not happen."
    follows = ("mlx4-core-not-loaded", "ib-core-not-loaded", "ib-uverbs-not-loaded")
    return _absent(examination, "mlx4_ib", mlx4_functions(examination), why, follows=follows)


@AREA.check(
    "ib-uverbs-not-loaded",
    Severity.CRITICAL,
    "ib_uverbs is not loaded",
    _RDMA_MANUAL,
    ok="ib_uverbs is loaded",
    impact=_NO_PROGRAM,
)
def ib_uverbs_not_loaded(examination: Examination) -> Outcome:
    """Check the verbs of programs; DMA-BUF and nvidia_peermem both need them."""
    why = "The driver of an RDMA card loads ib_uverbs. On this node that did not happen."
    follows = ("ib-core-not-loaded", "mlx5-core-not-loaded", "mlx4-core-not-loaded")
    return _absent(examination, "ib_uverbs", mlx_functions(examination), why, follows=follows)


@AREA.check(
    "nvidia-not-loaded",
    Severity.CRITICAL,
    "The nvidia driver is not loaded",
    DRIVER_GUIDE,
    ok="nvidia driver is loaded",
    impact="No GPU works on this node.",
)
def nvidia_not_loaded(examination: Examination) -> Outcome:
    """Check the GPU driver."""
    why = "The driver is on disk and not loaded: something unloaded it, or it failed to start (see dmesg)."
    return _absent(examination, "nvidia", gpu_functions(examination), why, "the NVIDIA driver")


@AREA.check(
    "nvidia-uvm-not-loaded",
    Severity.WARNING,
    "nvidia_uvm is not loaded",
    DRIVER_GUIDE,
    ok="nvidia_uvm is loaded",
    impact="CUDA programs in containers do not start: /dev/nvidia-uvm is missing.",
)
def nvidia_uvm_not_loaded(examination: Examination) -> Outcome:
    """Check CUDA's memory manager; GPUDirect RDMA itself does not use it."""
    why = (
        "Nothing has loaded it since the boot, or something unloaded it. On the host the first CUDA program "
        "loads it, if it runs as root or nvidia-modprobe is installed; a container cannot."
    )
    devices = gpu_functions(examination)
    return _absent(
        examination, "nvidia_uvm", devices, why, "the NVIDIA driver", follows=("nvidia-not-loaded",)
    )


def _watched(examination: Examination) -> Maybe[list[KernelModule]]:
    modules = examination.node.modules
    return modules if isinstance(modules, Unknown) else [modules.modules[name] for name in _WATCHED]


def _cost(examination: Examination, modules: list[KernelModule], usual: Severity) -> Severity:
    """Return the check's usual severity where a needed module is out; a note where only peermem is, unneeded.

    A module that is blocked and loaded all the same will be missing after the next reboot.
    """
    out = [one for one in modules if not isinstance(one.state, Unknown) and not is_present(one)]
    if all(one.name == PEERMEM for one in modules) and is_spare(examination):
        return Severity.NOTE
    if not out:
        return Severity.WARNING
    cost = severity_of_missing(examination, tuple(one.name for one in out))
    return usual if cost is Severity.CRITICAL else cost


def _blocked(
    examination: Examination,
    modules: list[tuple[KernelModule, Evidence]],
    cause: str,
    fix: Plan,
    usual: Severity,
) -> Outcome:
    facts = examination.node.modules
    if modules:
        blocked = [one for one, _ in modules]
        out = tuple(one.name for one in blocked if not is_present(one))
        return found(
            cause,
            *(seen for _, seen in modules[:SHOWN]),
            fix=fix,
            severity=_cost(examination, blocked, usual),
            devices=tuple(one.name for one in blocked),
            impact=impact_of_missing(examination, out) if out else "",
        )
    if isinstance(facts, ModuleFacts) and facts.rules_unread:
        return unknown(f"needs root: {unread_rules(facts)}")
    return passed(Evidence("modprobe --showconfig", "no GPUDirect RDMA module is blocked"))


def _initramfs_steps(release: Maybe[str]) -> tuple[Step, ...]:
    kernel = f" -k {release}" if not isinstance(release, Unknown) else ""
    return (
        instruction(f"Rebuild the initramfs: `update-initramfs -u{kernel}` (Debian) or `dracut -f` (RPM)"),
    )


@AREA.check(
    "module-blacklisted",
    Severity.WARNING,
    "modprobe.d blacklists a GPUDirect RDMA module",
    "modprobe.d(5), BLACKLIST",
    ok="modprobe.d blacklists no GPUDirect RDMA module",
    impact="The module is missing after every reboot until it is loaded by hand.",
)
def module_blacklisted(examination: Examination) -> Outcome:
    """Check lines `blacklist X`; loading by name works in spite of them."""
    aside = no_gpu_or_nic(examination)
    if aside is not None:
        return aside
    modules = _watched(examination)
    if isinstance(modules, Unknown):
        return unknown_without(MODULES, modules)
    listed = [
        (one, Evidence(one.blacklisted, f"blacklist {one.name}"))
        for one in modules
        if one.blacklisted is not None and not one.kernel_forbids
    ]
    files = sorted({one.blacklisted.rpartition(":")[0] for one, _ in listed if one.blacklisted})
    steps = (
        instruction(f"Delete the blacklist line in {', '.join(files) or 'modprobe.d'}"),
        *_initramfs_steps(examination.node.kernel_release),
        *(load_step(examination, one.name) for one, _ in listed if not is_present(one)),
    )
    cause = "The boot and udev skip a blacklisted module. `modprobe NAME` by hand still loads it."
    return _blocked(
        examination, listed, cause, Plan("Remove the module from the blacklist", steps), Severity.WARNING
    )


@AREA.check(
    "module-blacklisted-install",
    Severity.WARNING,
    "An install line of modprobe.d blocks a GPUDirect RDMA module",
    "modprobe.d(5), install",
    ok="No install line blocks a GPUDirect RDMA module",
    impact="Even modprobe by hand cannot load the module. It is missing after the next reboot.",
)
def module_blacklisted_install(examination: Examination) -> Outcome:
    """Check lines `install X /bin/false`; they stop loading by name too."""
    aside = no_gpu_or_nic(examination)
    if aside is not None:
        return aside
    modules = _watched(examination)
    if isinstance(modules, Unknown):
        return unknown_without(MODULES, modules)
    replaced = []
    for one in modules:
        where, _, line = (one.install_line or "").partition(": ")
        # Other commands load the module themselves, as distributions' files do.
        if one.install_line is not None and loads_nothing(one.install_line):
            replaced.append((one, Evidence(where, line[:LINE_LIMIT])))
    files = sorted({seen.source.rpartition(":")[0] for _, seen in replaced})
    steps = (
        instruction(f"Delete the install line in {', '.join(files) or 'modprobe.d'}"),
        *_initramfs_steps(examination.node.kernel_release),
        *(load_step(examination, one.name) for one, _ in replaced if not is_present(one)),
    )
    cause = "modprobe runs the command of the install line instead of loading the module."
    return _blocked(
        examination, replaced, cause, Plan("Let modprobe load the module", steps), Severity.CRITICAL
    )


@AREA.check(
    "module-blacklisted-cmdline",
    Severity.WARNING,
    "module_blacklist= on the kernel command line blocks a GPUDirect RDMA module",
    "Linux Documentation/admin-guide/kernel-parameters.txt, module_blacklist",
    ok="The kernel command line blocks no GPUDirect RDMA module",
    impact="Nothing can load the module until a reboot without the option.",
)
def module_blacklisted_cmdline(examination: Examination) -> Outcome:
    """Check the kernel's own blacklist, which stops every attempt to load a module."""
    aside = no_gpu_or_nic(examination)
    if aside is not None:
        return aside
    modules = _watched(examination)
    if isinstance(modules, Unknown):
        return unknown_without(MODULES, modules)
    refused = [
        (one, Evidence("/proc/cmdline", f"module_blacklist={one.name}"))
        for one in modules
        if one.kernel_forbids
    ]
    kernel = examination.node.kernel
    cmdline = kernel if isinstance(kernel, Unknown) else kernel.cmdline
    if not refused and isinstance(cmdline, Unknown):
        return unknown_without("the kernel command line", cmdline)
    steps = (
        instruction("Delete module_blacklist= from the boot loader's command line (grub, then update-grub)"),
        reboot_step("Reboot with the new command line"),
    )
    plan = Plan(
        "Remove the module from the kernel's blacklist",
        steps,
        needs_reboot=True,
        disturbs=REBOOT_ENDS_JOBS,
    )
    cause = "The kernel refuses the module with `Operation not permitted`, even to root."
    return _blocked(examination, refused, cause, plan, Severity.CRITICAL)
