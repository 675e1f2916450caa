"""The kernel modules of the ladder: loaded or not, and which settings block them."""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

from probes.base.data_files import read_toml
from probes.base.evidence import Evidence, Severity
from probes.base.frozen import frozen
from probes.base.plan import Plan, Step, instruction, make_plan
from probes.base.text import SHOWN, join_limited
from probes.base.unknown import Reason, Unknown, known, map_known
from probes.facts.kernel.module_blockers import explain
from probes.facts.kernel.module_files import DRIVER_PACKAGES
from probes.facts.kernel.modules import PEERMEM, KernelModule, ModuleFacts, ModuleState
from probes.facts.pci.nic_families import CONNECTX, CONNECTX_3, EFA, FAMILIES, MELLANOX, SLINGSHOT, NicFamily
from probes.plans.boot import command_line_steps, initramfs_step
from probes.plans.common import reboot_plan, reboot_step
from probes.plans.load_modules import blocker_of, load_plan, load_step
from probes.plans.packages import open_driver_steps
from probes.queries.finding import Area, Outcome, end_with, found, need, passed, unknown
from probes.queries.module_need import (
    RDMA_MODULES,
    impact_of_missing,
    is_spare,
    refused_by,
    severity_of_missing,
)
from probes.queries.modules import (
    LINE_LIMIT,
    MODULES,
    PCI,
    gpu_functions,
    is_present,
    module_of,
    nics_of,
    no_gpu_or_nic,
    state_evidence,
    unread_rules,
)
from probes.snapshot.examination import Examination

AREA = Area("modules", __package__)

_BLACKLIST = "module_blacklist="

_WATCHED = (
    *(*EFA.modules, *SLINGSHOT.modules, "ib_core", "ib_uverbs", *CONNECTX_3.modules, *CONNECTX.modules),
    *("nvidia", "nvidia_uvm", PEERMEM),
)
_DRIVER_PACKAGE = "the NVIDIA driver"


@frozen
class _Module:
    """A module that the node needs for its devices: a row of loaded.toml."""

    name: str
    why: str  # the cause where nothing is known to block the module
    package: str = "the kernel's extra modules, or OFED"
    part_of: tuple[str, ...] = ()
    severity: str = "critical"

    @property
    def families(self) -> tuple[NicFamily, ...]:
        """The families whose cards need it; (): the GPUs do."""
        return MELLANOX if self.name in RDMA_MODULES else tuple(f for f in FAMILIES if self.name in f.modules)


def _not_loaded(row: _Module, examination: Examination) -> Outcome:
    """Check that a module is loaded where there are devices that need it."""
    devices = nics_of(examination, *row.families) if row.families else gpu_functions(examination)
    if devices == ():
        return passed(Evidence("/sys/bus/pci/devices", f"no device needs {row.name}"))
    module = need(module_of(examination, row.name), MODULES)
    state = state_evidence(module)
    if is_present(module):
        return passed(state)
    devices = need(devices, PCI, state)
    if module.state is not ModuleState.NOT_LOADED:
        return unknown(f"try again in a moment: {row.name} is being loaded or unloaded", state)
    facts = examination.node.modules
    blocker = "" if isinstance(facts, Unknown) else explain(facts, row.name)
    is_explained = bool(blocker) and not blocker.startswith("on disk")
    return found(
        f"{row.name} is not loaded ({blocker[:LINE_LIMIT]})." if is_explained else row.why,
        state,
        Evidence("/sys/bus/pci/devices", join_limited(devices)),
        fix=_load_or_install(examination, module, row.package),
        devices=(row.name, *devices),
        part_of=(*row.part_of, *refused_by(examination, row.name)),
    )


def _load_or_install(examination: Examination, module: KernelModule, package: str) -> Plan | None:
    """Return a plan that loads or installs a module; None: something else blocks it."""
    if blocker_of(examination, module.name) is None:
        return load_plan(examination, module.name)
    if not isinstance(module.on_disk, Unknown) or module.on_disk.reason is not Reason.NOT_THERE:
        return None
    dkms = examination.dkms
    has_sources = not isinstance(dkms, Unknown) and any(each.name in DRIVER_PACKAGES for each in dkms.modules)
    install: tuple[Step | str, ...] = (f"Install {package} for the running kernel",)
    if package == _DRIVER_PACKAGE and not has_sources:
        install = open_driver_steps(examination)
    return make_plan(f"Install {module.name}", *install, load_step(examination, module.name))


for _name, _facts in read_toml(__package__, "loaded.toml").items():
    _row = _Module(_name, **_facts)
    AREA.check(Severity(_row.severity), f"{_name.replace('_', '-')}-not-loaded")(partial(_not_loaded, _row))


# Modules with the line that blocks each.
_Blocked: TypeAlias = "list[tuple[KernelModule, Evidence]]"


def _watched(examination: Examination) -> list[KernelModule]:
    """Return the modules that must not be blocked; end the check where there is nothing to load them for."""
    end_with(no_gpu_or_nic(examination))
    modules = need(examination.node.modules, MODULES)
    return [modules.modules[name] for name in _WATCHED]


def _severity(examination: Examination, modules: list[KernelModule], usual: Severity) -> Severity:
    """Return the usual severity where a needed module is missing; a note for peermem that is not needed.

    A module that is blocked but loaded will be missing after the next reboot.
    """
    known_modules = (module for module in modules if not isinstance(module.state, Unknown))
    missing = [module for module in known_modules if not is_present(module)]
    if all(module.name == PEERMEM for module in modules) and is_spare(examination):
        return Severity.NOTE
    if not missing:
        return Severity.WARNING
    severity = severity_of_missing(examination, tuple(module.name for module in missing))
    return usual if severity is Severity.CRITICAL else severity


def _blocked(examination: Examination, modules: _Blocked, cause: str, fix: Plan, usual: Severity) -> Outcome:
    facts = examination.node.modules
    if modules:
        blocked = [module for module, _ in modules]
        missing = tuple(module.name for module in blocked if not is_present(module))
        return found(
            cause,
            *(evidence for _, evidence in modules[:SHOWN]),
            fix=fix,
            severity=_severity(examination, blocked, usual),
            devices=tuple(module.name for module in blocked),
            impact=impact_of_missing(examination, missing) if missing else "",
        )
    if isinstance(facts, ModuleFacts) and facts.rules_unread:
        return unknown(f"needs root: {unread_rules(facts)}")
    return passed(Evidence("modprobe --showconfig", "no GPUDirect RDMA module is blocked"))


def _unblock_steps(examination: Examination, what: str, modules: _Blocked) -> tuple[Step, ...]:
    """Return the steps that delete lines of modprobe.d, rebuild the initramfs and load the modules."""
    files = sorted({evidence.source.rpartition(":")[0] for _, evidence in modules})
    return (
        instruction(f"Delete the {what} line in {', '.join(files) or 'modprobe.d'}"),
        initramfs_step(examination),
        *(load_step(examination, module.name) for module, _ in modules if not is_present(module)),
    )


@AREA.warning("module-blacklisted")
def module_blacklisted(examination: Examination) -> Outcome:
    """Check lines `blacklist X`; loading by name works in spite of them."""
    listed = [
        (module, Evidence(module.blacklisted, f"blacklist {module.name}"))
        for module in _watched(examination)
        if module.blacklisted is not None and not module.kernel_forbids
    ]
    cause = "udev and the boot process skip a blacklisted module. A manual `modprobe NAME` still loads it."
    plan = Plan("Remove the module from the blacklist", _unblock_steps(examination, "blacklist", listed))
    return _blocked(examination, listed, cause, plan, Severity.WARNING)


@AREA.warning("module-blacklisted-install")
def module_blacklisted_install(examination: Examination) -> Outcome:
    """Check lines `install X /bin/false`; they stop loading by name too."""
    replaced = []
    for module in _watched(examination):
        line = module.install_line
        # Other commands load the module themselves, as distributions' files do.
        if line is not None and line.loads_nothing:
            replaced.append((module, Evidence(line.where, line.text[:LINE_LIMIT])))
    cause = "modprobe runs the install line's command instead of loading the module."
    plan = Plan("Let modprobe load the module", _unblock_steps(examination, "install", replaced))
    return _blocked(examination, replaced, cause, plan, Severity.CRITICAL)


@AREA.warning("module-blacklisted-cmdline")
def module_blacklisted_cmdline(examination: Examination) -> Outcome:
    """Check the kernel's own blacklist, which stops every attempt to load a module."""
    refused = [
        (module, Evidence("/proc/cmdline", f"module_blacklist={module.name}"))
        for module in _watched(examination)
        if module.kernel_forbids
    ]
    cmdline = map_known(examination.node.kernel, lambda kernel: kernel.cmdline)
    if not refused:
        need(cmdline, "the kernel command line")
    words = reversed(known(cmdline, "").split())  # the last one counts, see parse_cmdline()
    option = next((word for word in words if word.replace("-", "_").startswith(_BLACKLIST)), _BLACKLIST)
    names = {module.name for module, _ in refused}
    listed = filter(None, option.replace('"', "").partition("=")[2].split(","))
    others = ",".join(name for name in listed if name.replace("-", "_") not in names)
    left = f"{_BLACKLIST}{others}" if others else ""
    plan = reboot_plan(
        "Remove the module from the kernel's blacklist",
        *command_line_steps(examination, "modules", left, option),
        reboot_step("Reboot with the new command line"),
    )
    cause = "The kernel refuses the module with `Operation not permitted`, even to root."
    return _blocked(examination, refused, cause, plan, Severity.CRITICAL)
