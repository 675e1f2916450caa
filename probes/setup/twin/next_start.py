"""Read what the next start of a kernel has: modules, command line, IOMMU, NIC driver, trusted keys."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.gpudirect_probe import FIRST_DMABUF_KERNEL
from probes.facts.kernel import module_files
from probes.facts.kernel.boot import BootFacts, read_grub_options, read_next_line, words_that_matter
from probes.facts.kernel.boot_loader import BootLoader
from probes.facts.kernel.depmod import origin_of
from probes.facts.kernel.installed_modules import DAMAGED, InstalledModules, read_installed
from probes.facts.kernel.module_files import DRIVER_PACKAGES, OFED_PACKAGES, DkmsFacts, ModuleFile
from probes.facts.kernel.modules import LADDER, PEERMEM
from probes.facts.kernel.release import CONFIG_LIMIT_BYTES, parse_config, parse_version
from probes.facts.kernel.symbol_versions import SymbolVersions, read_versions
from probes.facts.pci.nic_families import CONNECTX
from probes.facts.system.kubernetes import DriverContainerFacts
from probes.host.protocol import Host
from probes.queries.modules import file_of, gpu_functions, is_present, module_of, nics_of
from probes.setup.twin.booted import ONLY_AFTER, NextStart
from probes.simulation.commands.boot import MODULES
from probes.simulation.node.model.tree import Refusal
from probes.simulation.node.modules.loading import KEY_REJECTED
from probes.simulation.node.system.system import PASSTHROUGH
from probes.snapshot.examination import Examination

NAMES = tuple(dict.fromkeys((*LADDER, *MODULES, "nouveau", "ib_peer_mem")))
"""The modules that decide a start."""
_OFF = {"intel_iommu=off", "amd_iommu=off", "iommu=off"}
_IOMMU_WORDS = ("iommu", "intel_iommu", "amd_iommu", "iommu.passthrough", "iommu.strict")
_SECONDS = 2.0
_NO_ENTRY = "no boot entry shows the next kernel command line"


@frozen
class KernelFiles:
    """The files that decide a start, and what follows from them."""

    start: NextStart
    modules: InstalledModules
    enforces_signatures: bool
    rejected: Mapping[str, Refusal]  # modules whose signature the kernel will not trust
    versions: SymbolVersions  # that it compares when it loads nvidia_peermem


def read_kernel_files(
    disk: Host, examination: Examination, boot: Maybe[BootFacts], release: str, is_image: bool
) -> KernelFiles:
    """Read the files of the kernel `release` on `disk`.

    `is_image`: the disk is not that of the examined node, so nothing on it is as now.
    """
    modules = read_installed(disk, release, NAMES)
    line = read_next_line(disk, release)
    before = map_known(examination.node.kernel, lambda kernel: kernel.cmdline)
    cmdline: Maybe[str] = Unknown(Reason.NOT_YET, "/proc/cmdline", _NO_ENTRY) if is_image else ""
    missing = ""
    is_grub = not isinstance(boot, Unknown) and boot.loader is BootLoader.GRUB
    # GRUB's settings, from which the kernel's entry is still to be written.
    is_to_be_written = is_grub and isinstance(line, Unknown) and line.reason is Reason.NOT_THERE
    if not isinstance(line, Unknown):
        cmdline = line.line
        missing = "values of boot loader variables in the kernel command line" * line.has_variables
    elif not isinstance(options := read_grub_options(disk) if is_to_be_written else line, Unknown):
        cmdline = options
        missing = "the next kernel command line (there is no boot entry yet): that of GRUB's settings"
    elif not is_image:
        cmdline = before
        missing = f"the next kernel command line ({line}): taken as it is now"
    enforces = _enforces(examination, cmdline, is_image)
    rejected, doubted = _by_signatures(disk, examination, boot, modules) if enforces else ({}, {})
    iommu, dmabuf = _iommu(disk, release, cmdline, before), _dmabuf(examination, modules)
    builders = module_files.probe_dkms(disk) if is_image else examination.dkms
    container = Unknown(Reason.NOT_RECORDED) if is_image else examination.driver_container
    later, driver = {**_later(examination, modules, builders, container), **doubted}, _unread_driver(modules)
    changed = _is_other_driver(examination, modules)
    start = NextStart(release, cmdline, iommu, dmabuf, later, driver, changed, missing)
    return KernelFiles(start, modules, enforces, rejected, _versions(disk, modules))


def _versions(disk: Host, modules: InstalledModules) -> SymbolVersions:
    """Read the versions of the peer-memory symbol in the kernel's files."""
    importer, exporter = modules.entry(PEERMEM), known(modules.peer_memory, "")
    provider = modules.entry(exporter)
    absent = Unknown(Reason.NOT_THERE, modules.index)
    return read_versions(
        disk,
        absent if importer is None else importer.path,
        exporter,
        absent if provider is None else provider.path,
    )


# The command line


def _iommu(disk: Host, release: str, cmdline: Maybe[str], before: Maybe[str]) -> Maybe[str] | None:
    """Return the type that IOMMU groups will have, "" for no IOMMU; None: the same as now."""
    if isinstance(cmdline, Unknown):
        return cmdline
    words, old = _iommu_words(cmdline), _iommu_words(known(before, ""))
    if words == old and not isinstance(before, Unknown):
        return None
    if words & PASSTHROUGH:
        return "identity"
    if words & _OFF:
        return ""
    config = disk.read_bytes(f"/boot/config-{release}", CONFIG_LIMIT_BYTES)
    if isinstance(config, Unknown):
        return Unknown(Reason.NOT_YET, f"/boot/config-{release}", ONLY_AFTER)
    if known(parse_config(config, "CONFIG_IOMMU_DEFAULT_PASSTHROUGH"), False):
        return "identity"
    is_on = bool({"intel_iommu=on", "amd_iommu=on", "iommu=force"} & words)
    if is_on or known(parse_config(config, "CONFIG_INTEL_IOMMU_DEFAULT_ON"), False):
        return "DMA-FQ"
    return Unknown(Reason.NOT_YET, f"/boot/config-{release}", ONLY_AFTER)


def _iommu_words(line: str) -> frozenset[str]:
    return frozenset(word for word in words_that_matter(line) if word.partition("=")[0] in _IOMMU_WORDS)


def _enforces(examination: Examination, cmdline: Maybe[str], is_image: bool) -> bool:
    """Return whether the kernel will load only modules with a trusted signature."""
    words = [word for word in known(cmdline, "").split() if word.startswith("module.sig_enforce")]
    if words and words[-1].partition("=")[2] not in ("0", "n", "N"):
        return True
    kernel = examination.node.kernel
    if isinstance(kernel, Unknown):
        return False
    by_line = "module.sig_enforce" in known(kernel.cmdline, "")
    now = known(kernel.signatures_enforced, False) and not by_line and not is_image
    return known(kernel.secure_boot, False) or now


# Modules


def _is_other_driver(examination: Examination, modules: InstalledModules) -> bool:
    """Return whether the kernel's nvidia.ko is not the one whose driver answers now."""
    file, now = modules.file("nvidia"), module_of(examination, "nvidia")
    if isinstance(file, Unknown) or isinstance(now, Unknown) or not is_present(now):
        return True
    if isinstance(file.srcversion, Unknown) or isinstance(now.srcversion, Unknown):
        return known(file.version, "?") != known(now.version, "")
    return file.srcversion != now.srcversion


def _unread_driver(modules: InstalledModules) -> Unknown | None:
    """Return why nothing is known about the file of the NVIDIA driver, which is there."""
    why = modules.unread.get("nvidia")
    if why is None or why.detail == DAMAGED or why.reason is Reason.NOT_THERE:
        return None
    return Unknown(Reason.NOT_YET, why.source, f"{ONLY_AFTER}: the driver's file is {why.detail or why}")


def _dmabuf(examination: Examination, modules: InstalledModules) -> Maybe[bool] | None:
    """Return whether the NIC driver of this kernel supports DMA-BUF; None: it is the driver of now."""
    file, now = modules.file("mlx5_ib"), module_of(examination, "mlx5_ib")
    entry = modules.entry("mlx5_ib")
    if entry is None or isinstance(now, Unknown) or not is_present(now):
        return None
    is_ofed = origin_of(entry.relative) != "kernel"
    if not isinstance(file, Unknown):
        if not isinstance(file.srcversion, Unknown) and file.srcversion == now.srcversion:
            return None
        if is_ofed and not isinstance(file.version, Unknown) and file.version == now.version:
            return None
    if is_ofed:
        return Unknown(Reason.NOT_YET, entry.path, ONLY_AFTER)
    is_running = modules.release == examination.node.kernel_release
    if is_running and isinstance(now.srcversion, Unknown) and "O" not in known(now.taint, "O"):
        return None  # Debian's kernel has no srcversion; a module without the taint O is the kernel's own
    version = parse_version(modules.release)
    if not isinstance(version, Unknown) and version < FIRST_DMABUF_KERNEL:
        return False
    return modules.dmabuf_config


def _later(
    examination: Examination,
    modules: InstalledModules,
    builders: Maybe[DkmsFacts],
    containers: Maybe[DriverContainerFacts],
) -> dict[str, str]:
    """Return the modules without a file that a driver container or DKMS may install, and who may."""
    found: dict[str, str] = {}
    for names, packages, is_driver in (
        (("nvidia", "nvidia_uvm"), DRIVER_PACKAGES, True),
        (CONNECTX.modules, OFED_PACKAGES, False),
    ):
        absent = [name for name in names if modules.is_there(name) is not True]
        devices = gpu_functions(examination) if is_driver else nics_of(examination, CONNECTX)
        if not absent or devices == ():
            continue
        why = ""
        if not isinstance(containers, Unknown):
            runs = containers.driver if is_driver else containers.mofed
            why = "a driver container installs the module" if runs is True else ""
        known_to_dkms = () if isinstance(builders, Unknown) else builders.modules
        ours = [module for module in known_to_dkms if module.name in packages]
        built = [release for module in ours for release in (*module.installed, *module.built)]
        may_build = bool(ours) and modules.has_headers is True and not modules.lacks_index
        if not why and may_build and modules.release not in built and ours[-1].failed_log is None:
            why = f"DKMS may build {ours[-1].name} {ours[-1].version} during the boot"
        unread = any(modules.is_there(name) is not False for name in absent)
        if not why and unread and not modules.lacks_index:
            why = f"the modules of {modules.release} cannot be read"
        found.update(dict.fromkeys(absent, why) if why else {})
    return found


# Signatures


def _by_signatures(
    disk: Host, examination: Examination, boot: Maybe[BootFacts], modules: InstalledModules
) -> tuple[dict[str, Refusal], dict[str, str]]:
    """Return the out-of-tree modules whose key is not enrolled, and those whose key is unknown."""
    files = known(modules.files, {})
    strangers = [
        name
        for name, file in files.items()
        if not isinstance(file.signer, Unknown) or file.signer.reason is not Reason.NOT_THERE
        if (entry := modules.entry(name)) is not None and origin_of(entry.relative) != "kernel"
        if not _is_trusted_now(examination, file)
    ]
    keys = known(boot.mok_keys, ()) if not isinstance(boot, Unknown) else ()
    answers = {_is_enrolled(disk, key) for key in keys[:4]} if strangers else set()
    if answers == {True}:
        return {}, {}
    if answers == {False}:
        return dict.fromkeys(strangers, KEY_REJECTED), {}
    doubt = "gdrtop cannot tell whether the kernel trusts its signature"
    return {}, {name: doubt for name in strangers if name in ("nvidia", "nvidia_uvm", *CONNECTX.modules)}


def _is_enrolled(host: Host, key: str) -> bool | None:
    """Ask mokutil whether shim trusts a key that DKMS signs with (mokutil(1), --test-key)."""
    answer = host.run(("mokutil", "--test-key", printable(key, 256)), _SECONDS)
    words = "" if isinstance(answer, Unknown) else f"{answer.stdout} {answer.stderr}"
    return True if "already enrolled" in words else False if "not enrolled" in words else None


def _is_trusted_now(examination: Examination, file: ModuleFile) -> bool:
    """Return whether the running kernel enforces signatures and has loaded a module of the same signer."""
    kernel = examination.node.kernel
    if isinstance(kernel, Unknown) or isinstance(file.signer, Unknown):
        return False
    if not (kernel.signatures_enforced is True or kernel.secure_boot is True):
        return False
    loaded = (name for name in LADDER if not isinstance(module := module_of(examination, name), Unknown)
              and is_present(module))  # fmt: skip
    signers = (file_of(examination, name) for name in loaded)
    return any(not isinstance(other, Unknown) and other.signer == file.signer for other in signers)
