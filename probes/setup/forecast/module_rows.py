"""Forecast of the modules: files for this kernel, their versions and signatures."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.kernel.depmod import origin_of
from probes.facts.kernel.dkms import DRIVER_PACKAGES
from probes.facts.kernel.module_files import ModuleFile
from probes.facts.kernel.modules import ModuleState
from probes.queries.finding import Evidence
from probes.queries.modules import PEERMEM, file_of, module_of
from probes.setup.forecast.model import ForecastRow, Outlook, RowBuilder
from probes.setup.forecast.next_start import GPU_MODULES, Hardware, Start
from probes.snapshot.examination import Examination

_OFED_PACKAGES = ("mlnx-ofed-kernel", "mlnx-ofa_kernel")
_SIGNATURE_SETTING = "module.sig_enforce"


def module_rows(examination: Examination, devices: Hardware, start: Start) -> list[ForecastRow]:
    """Return the rows about files: GPU driver, NIC driver, versions, signatures."""
    return [
        _driver(examination, start, RowBuilder("gpu-driver", "GPU driver"), GPU_MODULES, DRIVER_PACKAGES),
        _driver(
            examination, start, RowBuilder("nic-driver", "NIC driver"), devices.nic_modules, _OFED_PACKAGES
        ),
        _versions(devices, start),
        _signatures(examination, devices, start),
    ]


def _driver(
    examination: Examination,
    start: Start,
    row: RowBuilder,
    modules: Sequence[str],
    packages: Sequence[str],
) -> ForecastRow:
    """Return whether the kernel has every module, and if not, why: DKMS, a driver container."""
    found = {module: start.modules.is_there(module) for module in modules}
    unread = next((answer for answer in found.values() if isinstance(answer, Unknown)), None)
    missing = [module for module, answer in found.items() if answer is False]
    index = start.modules.index
    if missing:
        outlook, why, evidence = _why_missing(examination, start, row.id, packages)
        reason = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing for this kernel{why}"
        evidence = (Evidence(index, f"no {', '.join(missing)}"), *evidence)
        return row.of(outlook, reason, *evidence)
    if unread is not None:
        return row.unknown(f"the modules are unknown ({unread})")
    file = start.modules.file(modules[0])
    version = "" if isinstance(file, Unknown) else known(file.version, "")
    reason = f"{', '.join(modules)}{f' {version}' if version else ''}: on disk for this kernel"
    return row.will(reason, *(_file_evidence(start, module) for module in modules[:2]))


def _why_missing(
    examination: Examination, start: Start, name: str, packages: Sequence[str]
) -> tuple[Outlook, str, tuple[Evidence, ...]]:
    container = examination.driver_container
    if not isinstance(container, Unknown):
        runs = container.driver if name == "gpu-driver" else container.mofed
        if runs is True:
            return Outlook.UNKNOWN, "; a driver container installs it after the boot", ()
    dkms = examination.dkms
    ours = [] if isinstance(dkms, Unknown) else [one for one in dkms.modules if one.name in packages]
    if not ours:
        return Outlook.WILL_NOT, "", ()
    package = ours[-1]
    built = ", ".join((*package.installed, *package.built)[:3]) or "no kernel"
    evidence = Evidence(f"/var/lib/dkms/{package.name}/{package.version}", f"built for {built}")
    if package.failed_log is not None:
        failed = Evidence(package.failed_log, "the last build did not finish")
        why = f"; DKMS failed to build {package.name} {package.version}"
        return Outlook.WILL_NOT, why, (evidence, failed)
    what = f"DKMS has not built {package.name} {package.version} for it"
    headers = start.modules.has_headers
    if headers is False:
        headers_of = Evidence(f"/lib/modules/{start.modules.release}/build", "not there")
        return Outlook.WILL_NOT, f"; {what}, and its headers are missing", (evidence, headers_of)
    # dkms.service runs `dkms autoinstall` at boot, which builds what is missing where there are headers.
    return Outlook.RISK, f"; {what} (dkms.service may build it during the boot)", (evidence,)


def needed_modules(devices: Hardware, start: Start) -> tuple[str, ...]:
    """Return the modules that the kernel has of those that the path needs, nvidia_peermem included."""
    names = (*devices.nic_modules, *GPU_MODULES, PEERMEM)
    return tuple(name for name in names if start.modules.entry(name) is not None)


def _versions(devices: Hardware, start: Start) -> ForecastRow:
    """Compare vermagic with the kernel, and the version of the driver's modules with each other."""
    row = RowBuilder("module-versions", "Module versions")
    files = start.modules.files
    if isinstance(files, Unknown):
        return row.unknown(f"needs modinfo ({files})", decides=False)
    release = start.modules.release
    shown = [file for module in needed_modules(devices, start) if (file := files.get(module)) is not None]
    wrong = [file for file in shown if _is_for_another(file, release)]
    if wrong:
        names = ", ".join(file.name for file in wrong)
        reason = f"{names}: built for {known(wrong[0].kernel, '?')}, so this kernel refuses to load it"
        return row.will_not(reason, *(_magic(file) for file in wrong[:3]))
    nvidia = files.get("nvidia")
    of_driver = [file for file in shown if file.name.startswith("nvidia")]
    versions = {known(file.version, "") for file in of_driver} - {""}
    if nvidia is not None and len(versions) > 1:
        reason = f"the driver's modules are of different versions: {', '.join(sorted(versions))}"
        return row.will_not(
            reason,
            *(
                Evidence(f"modinfo -F version {file.name}", known(file.version, "?"))
                for file in of_driver[:3]
            ),
        )
    if not shown:
        return row.unknown("modinfo shows no file", decides=False)
    return row.will("every file was built for this kernel", _magic(shown[-1]))


def _is_for_another(file: ModuleFile, release: str) -> bool:
    """Red Hat's weak-updates are modules of an older kernel that fit this one by their symbols."""
    return (
        not isinstance(file.kernel, Unknown) and file.kernel != release and "/weak-updates/" not in file.path
    )


def _magic(file: ModuleFile) -> Evidence:
    return Evidence(f"modinfo -F vermagic {file.name}", str(known(file.kernel, "unknown")))


def _signatures(examination: Examination, devices: Hardware, start: Start) -> ForecastRow:
    """Judge the signatures of out-of-tree modules where the kernel will enforce them."""
    row = RowBuilder("signatures", "Module signatures")
    enforced, source = _enforced(examination, start)
    if enforced is False:
        return row.will("the kernel does not enforce signatures", Evidence(source, "no"))
    if isinstance(enforced, Unknown):
        reason = f"Secure Boot is unknown ({enforced})"
        return row.unknown(reason, decides=False)
    files = start.modules.files
    if isinstance(files, Unknown):
        reason = f"signatures are enforced, and modinfo is needed to see them ({files})"
        return row.unknown(reason)
    outside = [
        file
        for module in needed_modules(devices, start)
        if (file := files.get(module)) is not None and not _is_in_tree(start, module)
    ]
    unsigned = [file for file in outside if _is_unsigned(file)]
    if unsigned:
        names = ", ".join(file.name for file in unsigned)
        reason = f"{names}: unsigned, and the kernel enforces signatures ({source})"
        return row.will_not(
            reason,
            *(Evidence(f"modinfo -F signer {file.name}", "nothing: unsigned") for file in unsigned[:3]),
        )
    strangers = [file for file in outside if not _is_trusted_now(examination, file)]
    if not strangers:
        return row.will("the kernel loaded modules with the same signatures", Evidence(source, "yes"))
    return _by_key(start, strangers, source)


def _by_key(start: Start, files: list[ModuleFile], source: str) -> ForecastRow:
    """Judge files that no running kernel has accepted by the keys that DKMS signs with."""
    row = RowBuilder("signatures", "Module signatures")
    signer = Evidence(f"modinfo -F signer {files[0].name}", str(known(files[0].signer, "?")))
    tested = tuple(
        Evidence(f"mokutil --test-key {key}", str(answer) if isinstance(answer, Unknown) else _WORDS[answer])
        for key, answer in start.keys.items()
    )
    shown = (Evidence(source, "yes"), signer, *tested)
    if start.keys and all(answer is True for answer in start.keys.values()):
        return row.will("signed, and the key is enrolled", *shown)
    if start.keys and all(answer is False for answer in start.keys.values()):
        key = next(iter(start.keys))
        reason = f"{key} is not enrolled: confirm it at the console during the boot (SSH is not enough)"
        return row.will_not(reason, *shown)
    reason = f"signed by {known(files[0].signer, '?')}; whether the kernel trusts the key is unknown"
    return row.unknown(reason, *shown)


_WORDS = {True: "already enrolled", False: "not enrolled"}


def _enforced(examination: Examination, start: Start) -> tuple[Maybe[bool], str]:
    """Return whether the next start enforces signatures, and what shows it."""
    line = start.line
    if not isinstance(line, Unknown):
        words = [word for word in line.line.split() if word.partition("=")[0] == _SIGNATURE_SETTING]
        if words and words[-1].partition("=")[2] not in ("0", "n", "N"):
            return True, f"{line.source}: {words[-1]}"
    kernel = examination.node.kernel
    if isinstance(kernel, Unknown):
        return kernel, "Secure Boot"
    secure = kernel.secure_boot
    if secure is True:
        return True, "Secure Boot"
    if known(kernel.lockdown, "none") != "none":
        return True, f"/sys/kernel/security/lockdown: [{known(kernel.lockdown, '')}]"
    if kernel.signatures_enforced is True and start.is_running:
        return True, "/sys/module/module/parameters/sig_enforce"
    if isinstance(secure, Unknown) and secure.reason is not Reason.NOT_THERE:
        return secure, "Secure Boot"
    return False, "Secure Boot"


def _is_in_tree(start: Start, module: str) -> bool:
    """Return whether the file comes with the kernel's packages, signed with the kernel's own key."""
    entry = start.modules.entry(module)
    return entry is not None and origin_of(entry.relative) == "kernel"


def _is_unsigned(file: ModuleFile) -> bool:
    return isinstance(file.signer, Unknown) and file.signer.reason is Reason.NOT_THERE


def _is_trusted_now(examination: Examination, file: ModuleFile) -> bool:
    """Return whether the running kernel enforces signatures and has loaded a module of the same signer."""
    kernel = examination.node.kernel
    if isinstance(kernel, Unknown) or not (kernel.signatures_enforced is True or kernel.secure_boot is True):
        return False
    facts = examination.node.modules
    for name in () if isinstance(facts, Unknown) else facts.modules:
        module, loaded = module_of(examination, name), file_of(examination, name)
        if isinstance(module, Unknown) or isinstance(loaded, Unknown) or module.state is not ModuleState.LIVE:
            continue
        if loaded.signer == file.signer and not isinstance(file.signer, Unknown):
            return True
    return False


def _file_evidence(start: Start, module: str) -> Evidence:
    entry = start.modules.entry(module)
    if entry is None:
        return Evidence(f"/lib/modules/{start.modules.release}/modules.builtin", module)
    return Evidence(start.modules.index, entry.relative)
