"""The kernel modules of the ladder: loaded or not, and what the admin's own settings keep out."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.module_facts import (
    LINE_LIMIT,
    PEERMEM,
    gpu_functions,
    is_present,
    mlx5_functions,
    module_of,
    no_pair,
    state_seen,
    unread_rules,
)
from probes.checks.module_need import Need, need_of_peermem
from probes.checks.references import DRIVER_GUIDE
from probes.checks.wording import SHOWN, several
from probes.examination import Examination
from probes.module_obstacles import loads_nothing
from probes.modules import KernelModule, ModuleFacts, ModuleState
from probes.plan import Plan, Step, instruction
from probes.plans.interruptions import REBOOT_ENDS_JOBS, reboot_step
from probes.plans.loading import load_plan, load_step
from probes.plans.obstacles import bar_of
from probes.unknown import Maybe, Reason, Unknown

AREA = Area("modules")

_RDMA_MANUAL = "Linux Documentation/infiniband/user_verbs.rst and rdma-core README.md"
_MLX5_MANUAL = "Linux Documentation/networking/device_drivers/ethernet/mellanox/mlx5"
_WATCHED = ("ib_core", "ib_uverbs", "mlx5_core", "mlx5_ib", "nvidia", "nvidia_uvm", PEERMEM)


def _absent(
    examination: Examination, name: str, devices: Maybe[tuple[str, ...]], why: str, package: str
) -> Outcome:
    """A module that these devices need, and that is not loaded."""
    if not isinstance(devices, Unknown) and not devices:
        return passed(Evidence("/sys/bus/pci/devices", f"no device here needs {name}"))
    module = module_of(examination, name)
    if isinstance(module, Unknown):
        return unsure(f"whether {name} is loaded is unknown: {module}")
    if is_present(module):
        return passed(state_seen(module))
    if isinstance(devices, Unknown):
        return unsure(f"which devices need {name} is unknown: {devices}", state_seen(module))
    if module.state is not ModuleState.NOT_LOADED:
        return unsure(f"{name} is just being loaded or unloaded: look again in a minute", state_seen(module))
    return found(
        why,
        state_seen(module),
        Evidence("/sys/bus/pci/devices", several(devices)),
        fix=_bring(examination, module, package),
        devices=(name, *devices[:SHOWN]),
    )


def _absent_of_nics(examination: Examination, name: str, why: str) -> Outcome:
    """The same for a module of the RDMA stack, which the NICs need."""
    package = "the kernel's extra modules, or OFED"
    return _absent(examination, name, mlx5_functions(examination), why, package)


def _bring(examination: Examination, module: KernelModule, package: str) -> Plan | None:
    """Loading it, or installing it where there is none; None: something else is in its way."""
    if bar_of(examination, module.name) is None:
        return load_plan(examination, module.name)
    if not isinstance(module.on_disk, Unknown) or module.on_disk.reason is not Reason.NOT_THERE:
        return None
    return Plan(
        f"Install {module.name}",
        (instruction(f"install {package} for the running kernel"), load_step(examination, module.name)),
    )


@AREA.check(
    "ib-core-not-loaded",
    Severity.CRITICAL,
    "ib_core is not loaded: there is no RDMA on this node",
    _RDMA_MANUAL,
)
def ib_core_not_loaded(examination: Examination) -> Outcome:
    """The RDMA stack itself."""
    why = "without ib_core there are no HCAs and no ports; drivers of RDMA NICs load it with themselves"
    return _absent_of_nics(examination, "ib_core", why)


@AREA.check(
    "mlx5-core-not-loaded",
    Severity.CRITICAL,
    "mlx5_core is not loaded: ConnectX and BlueField cards have no driver",
    _MLX5_MANUAL,
)
def mlx5_core_not_loaded(examination: Examination) -> Outcome:
    """The driver of ConnectX and BlueField cards."""
    why = "without mlx5_core the cards are no devices at all; udev loads it unless something prevents it"
    return _absent_of_nics(examination, "mlx5_core", why)


@AREA.check(
    "mlx5-ib-not-loaded",
    Severity.CRITICAL,
    "mlx5_ib is not loaded: the cards are network interfaces only",
    _MLX5_MANUAL,
)
def mlx5_ib_not_loaded(examination: Examination) -> Outcome:
    """What makes RDMA devices of the cards."""
    why = "without mlx5_ib the cards are network interfaces only, and /sys/class/infiniband stays empty"
    return _absent_of_nics(examination, "mlx5_ib", why)


@AREA.check(
    "ib-uverbs-not-loaded",
    Severity.CRITICAL,
    "ib_uverbs is not loaded: programs cannot use RDMA, neither by DMA-BUF nor through nvidia-peermem",
    _RDMA_MANUAL,
)
def ib_uverbs_not_loaded(examination: Examination) -> Outcome:
    """Verbs for programs; both DMA-BUF and nvidia-peermem need it."""
    why = "without ib_uverbs there is no /dev/infiniband/uverbsN, and no program can register memory"
    return _absent_of_nics(examination, "ib_uverbs", why)


@AREA.check(
    "nvidia-not-loaded",
    Severity.CRITICAL,
    "nvidia is not loaded: there is no GPU memory to reach",
    DRIVER_GUIDE,
)
def nvidia_not_loaded(examination: Examination) -> Outcome:
    """The GPU driver."""
    why = "the GPUs have no driver: not installed for this kernel, kept out, or it failed to start (dmesg)"
    return _absent(examination, "nvidia", gpu_functions(examination), why, "the NVIDIA driver")


@AREA.check(
    "nvidia-uvm-not-loaded",
    Severity.WARNING,
    "nvidia_uvm is not loaded: no CUDA program starts until something loads it",
    DRIVER_GUIDE,
)
def nvidia_uvm_not_loaded(examination: Examination) -> Outcome:
    """CUDA's memory manager; GPUDirect RDMA itself does not use it."""
    why = (
        "CUDA programs need /dev/nvidia-uvm; run as root, or with nvidia-modprobe installed, "
        "the first of them loads nvidia_uvm, but a container cannot"
    )
    return _absent(examination, "nvidia_uvm", gpu_functions(examination), why, "the NVIDIA driver")


def _watched(examination: Examination) -> Maybe[list[KernelModule]]:
    modules = examination.node.modules
    return modules if isinstance(modules, Unknown) else [modules.modules[name] for name in _WATCHED]


def _cost(examination: Examination, modules: list[KernelModule], usual: Severity) -> Severity:
    """Critical where one that is kept out is not there and needed; a note where it is not needed."""
    out = [one for one in modules if not isinstance(one.state, Unknown) and not is_present(one)]
    if not out:
        return Severity.WARNING
    need = need_of_peermem(examination)
    if any(one.name != PEERMEM for one in out) or need is Need.NEEDED:
        return usual
    return Severity.WARNING if isinstance(need, Unknown) else Severity.NOTE


def _kept_out(
    examination: Examination,
    modules: list[tuple[KernelModule, Evidence]],
    cause: str,
    fix: Plan,
    usual: Severity,
) -> Outcome:
    facts = examination.node.modules
    if modules:
        of = [one for one, _ in modules]
        return found(
            cause,
            *(seen for _, seen in modules[:SHOWN]),
            fix=fix,
            severity=_cost(examination, of, usual),
            devices=tuple(one.name for one in of),
        )
    if isinstance(facts, ModuleFacts) and facts.rules_unread:
        return unsure(f"needs root: {unread_rules(facts)} cannot be read")
    return passed(Evidence("modprobe --showconfig", "none of the modules of GPUDirect RDMA is kept out"))


def _initramfs_steps(release: Maybe[str]) -> tuple[Step, ...]:
    kernel = f" -k {release}" if not isinstance(release, Unknown) else ""
    return (
        instruction(f"rebuild the initramfs: `update-initramfs -u{kernel}` (Debian) or `dracut -f` (RPM)"),
    )


@AREA.check(
    "module-blacklisted",
    Severity.WARNING,
    "modprobe.d blacklists a module of GPUDirect RDMA: the boot does not load it",
    "modprobe.d(5), BLACKLIST",
)
def module_blacklisted(examination: Examination) -> Outcome:
    """Lines `blacklist X`; loading by name works in spite of them."""
    aside = no_pair(examination)
    if aside is not None:
        return aside
    modules = _watched(examination)
    if isinstance(modules, Unknown):
        return unsure(f"the kernel modules could not be read: {modules}")
    listed = [
        (one, Evidence(one.blacklisted, f"blacklist {one.name}"))
        for one in modules
        if one.blacklisted is not None and not one.kernel_forbids
    ]
    files = sorted({one.blacklisted.rpartition(":")[0] for one, _ in listed if one.blacklisted})
    steps = (
        instruction(f"delete the blacklist line in {', '.join(files) or 'modprobe.d'}"),
        *_initramfs_steps(examination.node.kernel_release),
        *(load_step(examination, one.name) for one, _ in listed if not is_present(one)),
    )
    cause = (
        "`blacklist` keeps a module from being loaded by the boot and by udev; "
        "`modprobe NAME` by hand works all the same"
    )
    return _kept_out(
        examination, listed, cause, Plan("Take the module off the blacklist", steps), Severity.WARNING
    )


@AREA.check(
    "module-blacklisted-install",
    Severity.WARNING,
    "an install line of modprobe.d replaces the loading of a module by a command that loads nothing",
    "modprobe.d(5), install",
)
def module_blacklisted_install(examination: Examination) -> Outcome:
    """Lines `install X /bin/false`; they stop loading by name too."""
    aside = no_pair(examination)
    if aside is not None:
        return aside
    modules = _watched(examination)
    if isinstance(modules, Unknown):
        return unsure(f"the kernel modules could not be read: {modules}")
    replaced = []
    for one in modules:
        where, _, line = (one.install_line or "").partition(": ")
        # Other commands load the module in a way of their own, as distributions' files do.
        if one.install_line is not None and loads_nothing(one.install_line):
            replaced.append((one, Evidence(where, line[:LINE_LIMIT])))
    files = sorted({seen.source.rpartition(":")[0] for _, seen in replaced})
    steps = (
        instruction(f"delete the install line in {', '.join(files) or 'modprobe.d'}"),
        *_initramfs_steps(examination.node.kernel_release),
        *(load_step(examination, one.name) for one, _ in replaced if not is_present(one)),
    )
    cause = "modprobe runs the command of the install line instead of loading the module, also by hand"
    return _kept_out(
        examination, replaced, cause, Plan("Let modprobe load the module", steps), Severity.CRITICAL
    )


@AREA.check(
    "module-blacklisted-cmdline",
    Severity.WARNING,
    "module_blacklist= on the kernel's command line refuses a module, however it is loaded",
    "Linux Documentation/admin-guide/kernel-parameters.txt, module_blacklist",
)
def module_blacklisted_cmdline(examination: Examination) -> Outcome:
    """The kernel's own blacklist, which stops every way of loading."""
    aside = no_pair(examination)
    if aside is not None:
        return aside
    modules = _watched(examination)
    if isinstance(modules, Unknown):
        return unsure(f"the kernel modules could not be read: {modules}")
    refused = [
        (one, Evidence("/proc/cmdline", f"module_blacklist={one.name}"))
        for one in modules
        if one.kernel_forbids
    ]
    if not refused and (
        isinstance(examination.node.kernel, Unknown) or isinstance(examination.node.kernel.cmdline, Unknown)
    ):
        return unsure("the kernel's command line could not be read")
    steps = (
        instruction("delete module_blacklist= from the boot loader's command line (grub, then update-grub)"),
        reboot_step("boots with the new command line"),
    )
    plan = Plan(
        "Take the module off the kernel's blacklist",
        steps,
        needs_reboot=True,
        disturbs=REBOOT_ENDS_JOBS,
    )
    cause = "the kernel refuses the module with `Operation not permitted`, whoever loads it"
    return _kept_out(examination, refused, cause, plan, Severity.CRITICAL)
