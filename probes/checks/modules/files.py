"""Module files that modprobe cannot use: damaged or gone, of another architecture, without an index."""

from __future__ import annotations

from probes.base.plan import Plan, Step, instruction
from probes.base.unknown import Reason, Unknown, known
from probes.facts.system.platform import in_container
from probes.plans.driver import rebuild_plan
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, need, passed
from probes.queries.module_need import (
    GPU_MODULES,
    architecture_differs,
    missing_modules,
    severity_of_missing,
    unusable_file,
)
from probes.queries.modules import FILES, MODULES, module_of
from probes.snapshot.examination import Examination

AREA = Area("modules")
_DEPMOD = "depmod(8), modules.dep(5)"
_CPU = "the CPU's architecture"


@AREA.check(
    "module-file-unusable",
    Severity.CRITICAL,
    "modprobe cannot read a module's file that depmod lists",
    _DEPMOD,
    ok="Every module file that depmod lists is readable",
    impact="The module cannot be loaded on this kernel.",
)
def module_file_unusable(examination: Examination) -> Outcome:
    """Find files that modules.dep names and modinfo cannot read: gone, cut off, or no ELF file."""
    need(examination.module_files, FILES)
    missing = need(missing_modules(examination), MODULES)
    bad = {name: path for name in missing if (path := unusable_file(examination, name))}
    if not bad:
        return passed(Evidence("modinfo", "reads the file of every module that is not loaded"))
    return found(
        "The file was deleted or is damaged, and modules.dep still lists it: the module cannot be loaded.",
        *(Evidence(path, "listed in modules.dep, not readable by modinfo") for path in bad.values()),
        fix=_rebuild(examination, tuple(bad)),
        severity=severity_of_missing(examination, tuple(bad)),
        devices=tuple(bad),
    )


def _rebuild(examination: Examination, names: tuple[str, ...]) -> Plan | None:
    release = known(examination.node.kernel_release, "")
    if release and any(name in GPU_MODULES for name in names):
        return rebuild_plan(release)
    return Plan("Restore the modules", (instruction("Install the package of these modules again"),))


@AREA.check(
    "module-wrong-architecture",
    Severity.CRITICAL,
    "Module files are for another CPU architecture",
    "Linux kernel/module/main.c, elf_validity_check",
    ok="Module files are for this CPU",
    impact="This system cannot start on this hardware.",
)
def module_wrong_architecture(examination: Examination) -> Outcome:
    """Compare the architecture in each file's vermagic with the CPU's."""
    platform = examination.node.platform
    cpu = need(platform if isinstance(platform, Unknown) else platform.cpu_architecture, _CPU)
    facts = need(examination.module_files, FILES)
    files = need(facts.files, FILES)
    other = {name: file for name, file in files.items() if architecture_differs(examination, file) is True}
    if not other:
        return passed(Evidence("modinfo -F vermagic", f"{cpu}, as the CPU"))
    return found(
        f"The kernel refuses them with “Exec format error”: this CPU is {cpu}.",
        *(Evidence(file.path, str(file.architecture)) for file in list(other.values())[:4]),
        fix=Plan(
            "Install the system for this architecture",
            (instruction(f"Build or download the image for {cpu}"),),
        ),
        devices=tuple(other),
    )


@AREA.check(
    "modules-index-missing",
    Severity.CRITICAL,
    "The kernel's modules have no index (modules.dep)",
    _DEPMOD,
    ok="The kernel's modules have an index",
    impact="modprobe and udev load no module.",
)
def modules_index_missing(examination: Examination) -> Outcome:
    """Find a node whose modules are not loaded and cannot be, because depmod never ran for its kernel."""
    release = need(examination.node.kernel_release, "the kernel's release")
    path = f"/lib/modules/{release}/modules.dep"
    if in_container(examination.node.platform):
        return passed(Evidence(path, "a container loads no modules"))
    missing = need(missing_modules(examination), MODULES)
    gone = [name for name in missing if _has_no_index(examination, name)]
    if not gone:
        return passed(Evidence(path, "there, or every module is loaded"))
    return found(
        f"depmod has not run for {release}, so modprobe does not find {', '.join(gone[:4])}.",
        Evidence(path, "not there"),
        fix=Plan("Index the modules", (Step("Write modules.dep", ("depmod", "-a", release)),)),
        devices=tuple(gone),
    )


def _has_no_index(examination: Examination, name: str) -> bool:
    module = module_of(examination, name)
    if isinstance(module, Unknown) or not isinstance(module.on_disk, Unknown):
        return False
    return module.on_disk.reason is Reason.FILE_MISSING
