"""How this node changes what its next boot reads: kernel command line, boot image, Secure Boot keys.

Sources: update-grub(8), grubby(8), grub2-mkconfig(8), kernel-install(8), rpm-ostree(1), update-initramfs(8),
dracut(8), mkinitcpio(8), mokutil(1), and the manuals of Red Hat, SUSE and Fedora. Since RHEL 9.3
grub2-mkconfig leaves the options of boot loader entries alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from probes.base.plan import FileChange, Plan, Step, instruction
from probes.base.unknown import Unknown, known, map_known
from probes.facts.kernel.boot import InitramfsTool
from probes.facts.kernel.boot_loader import GRUB_SETTINGS, BootLoader
from probes.facts.system.packages import Family
from probes.plans.common import reboot_plan, reboot_step
from probes.plans.packages import family_of
from probes.snapshot.examination import Examination

_COMMAND_LINE = "the kernel command line"
_GRUB_FILE = f"{GRUB_SETTINGS}.d/gdrtop-{{}}.cfg"
_APPLY = "Write the boot loader's configuration"
_UPDATE_GRUB, _MKCONFIG = ("update-grub",), ("grub2-mkconfig", "-o", "/boot/grub2/grub.cfg")
_KERNEL_CMDLINE = "/etc/kernel/cmdline"
_MACHINE_CONFIG = "spec.kernelArguments in the MachineConfig for this node's pool."
_WITH_ENTRIES = {  # the command, and its options that add and remove
    BootLoader.GRUB_BLS: (("grubby", "--update-kernel=ALL"), "--args", "--remove-args"),
    BootLoader.OSTREE: (("rpm-ostree", "kargs"), "--append-if-missing", "--delete-if-present"),
}
_WHICH = (
    "Use grubby --update-kernel=ALL if /boot/loader/entries and grubby are there. Otherwise edit"
    f" {GRUB_SETTINGS} and run {' '.join(_UPDATE_GRUB)} or {' '.join(_MKCONFIG)}, or edit {_KERNEL_CMDLINE}"
    " and run kernel-install."
)
_KEEP_QUOTES = "Keep the quotes: GRUB ends the command at an unquoted semicolon."
_REBUILD = "Rebuild the initramfs"
# Of all kernels: the one that boots next may be newer than the running one, for which alone dracut -f works.
_INITRAMFS = {
    InitramfsTool.UPDATE_INITRAMFS: ("update-initramfs", "-u", "-k", "all"),
    InitramfsTool.DRACUT: ("dracut", "--regenerate-all", "--force"),
    InitramfsTool.MKINITCPIO: ("mkinitcpio", "-P"),
}
_USUAL_TOOLS = {
    Family.DEBIAN: InitramfsTool.UPDATE_INITRAMFS,
    **dict.fromkeys((Family.RED_HAT, Family.SUSE, Family.AZURE_LINUX), InitramfsTool.DRACUT),
}
COMMAND_LINE_PROGRAMS = ("grub2-mkconfig", "grubby", "kernel-install", "rpm-ostree", "update-grub")
INITRAMFS_PROGRAMS = tuple(command[0] for command in _INITRAMFS.values())
# dkms(8), prepare_signing: Ubuntu signs with the key of update-secureboot-policy, all others with DKMS's own,
# unless /etc/dkms/framework.conf names another one.
_UBUNTU_KEY, _DKMS_KEY = "/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub"


def command_line_steps(
    examination: Examination, subject: str, add: str = "", remove: str = ""
) -> tuple[Step, ...]:
    """Return the steps that change options of the kernel command line with this node's boot loader.

    `subject`: a word for the name of the file that is written for it.
    """
    loader = map_known(examination.boot, lambda boot: boot.loader)
    why = _why(add, remove, _COMMAND_LINE)
    if isinstance(loader, Unknown):
        return (_manual(f"{why}, with this node's boot loader ({loader}). {_WHICH}", add),)
    if loader in _WITH_ENTRIES:
        program, added, removed = _WITH_ENTRIES[loader]
        run = (*program, *_values((removed, remove), (added, add)))
        undo = (*program, *_values((removed, add), (added, remove)))
        if '"' in add:  # only GRUB's own settings are known to keep such quotes
            return (instruction(f"{why}. {_KEEP_QUOTES}", to_copy=shlex.join(run)),)
        return (Step(f"{why} of all kernels", run, undo=undo),)
    if loader is BootLoader.MACHINE_CONFIG:
        return (_manual(_why(add, remove, _MACHINE_CONFIG), add),)
    if loader is BootLoader.TALOS:
        arguments = f"with the extra kernel argument {_name(add)}" if add else f"without {remove}"
        return (_manual(f"Create a Talos boot image {arguments}, and upgrade to it.", add),)
    if loader is not BootLoader.GRUB:
        return (_manual(_why(add, remove, f"{_KERNEL_CMDLINE}."), add), _kernel_install(examination))
    quoted = add.replace('"', r"\"")
    if family_of(examination) is Family.DEBIAN and not remove:
        file = FileChange(_GRUB_FILE.format(subject), f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {quoted}"\n')
        return (Step(why, file=file), _apply_step(examination))
    places = f"GRUB_CMDLINE_LINUX in {GRUB_SETTINGS}"
    if remove:  # wherever it stands
        places = f"GRUB_CMDLINE_LINUX or GRUB_CMDLINE_LINUX_DEFAULT in {GRUB_SETTINGS} or {GRUB_SETTINGS}.d"
    text = _why(add, remove, places)
    text = f"{text}, inside its quotes. {_KEEP_QUOTES}" if '"' in add else f"{text}."
    return (_manual(text, quoted), _apply_step(examination))


_SYSCTL_FILE = "/etc/sysctl.d/gdrtop-{}.conf"  # after files whose names begin with digits (sysctl.d(5))


def sysctl_steps(examination: Examination, subject: str, key: str, value: int, now: int) -> tuple[Step, ...]:
    """Return the steps that set a sysctl now and at each boot, as this system keeps it.

    `subject`: a word for the name of the file that is written for it.
    """
    step = Step(f"Set {key} now", ("sysctl", "-w", f"{key}={value}"), undo=("sysctl", "-w", f"{key}={now}"))
    loader = known(map_known(examination.boot, lambda boot: boot.loader), None)
    if loader is BootLoader.TALOS:
        text = f"Add {key}={value} to the sysctls of the Talos machine configuration, or a reboot undoes it."
        return (step, instruction(text))
    if loader is BootLoader.MACHINE_CONFIG:
        text = f"Add {key}={value} to a Tuned profile of the Node Tuning Operator, or a reboot undoes it."
        return (step, instruction(text))
    file = FileChange(_SYSCTL_FILE.format(subject), f"{key} = {value}\n")
    return (step, Step(f"Set {key} at each boot", file=file))


def settings_steps(examination: Examination, options: Iterable[str]) -> tuple[Step, ...]:
    """Return the steps after which the next boot has options that are in GRUB's settings already."""
    if known(map_known(examination.boot, lambda boot: boot.loader), None) is BootLoader.GRUB_BLS:
        return command_line_steps(examination, "", " ".join(options))
    return (_apply_step(examination),)


def _values(*pairs: tuple[str, str]) -> tuple[str, ...]:
    return tuple(f"{option}={value}" for option, value in pairs if value)


def _name(option: str) -> str:
    """Return an option without a quoted value, which is for copying."""
    return option.partition('"')[0]


def _why(add: str, remove: str, where: str) -> str:
    if not remove:
        return f"Add {_name(add)} to {where}"
    return f"Replace {remove} with {_name(add)} in {where}" if add else f"Remove {remove} from {where}"


def _manual(text: str, option: str) -> Step:
    return instruction(text, to_copy=option if '"' in option else "")


def _apply_step(examination: Examination) -> Step:
    if isinstance(examination.distribution, Unknown):
        return instruction(f"{_APPLY}: {' '.join(_UPDATE_GRUB)} (Debian) or {' '.join(_MKCONFIG)} (RPM)")
    return Step(_APPLY, _UPDATE_GRUB if family_of(examination) is Family.DEBIAN else _MKCONFIG)


def _kernel_install(examination: Examination) -> Step:
    release = known(examination.node.kernel_release, "")
    kernels = known(map_known(examination.boot, lambda boot: known(boot.kernels, ())), ())
    image = next((known(kernel.image, "") for kernel in kernels if kernel.release == release), "")
    if not image:
        return instruction("Reinstall the boot entry of each kernel: kernel-install add RELEASE IMAGE")
    return Step("Write the running kernel's boot entry", ("kernel-install", "add", release, image))


def initramfs_command(examination: Examination) -> str:
    """Return the command that rebuilds the boot images of all kernels, or that of Debian and the others'."""
    tool = map_known(examination.boot, lambda boot: boot.initramfs)
    found = _USUAL_TOOLS.get(family_of(examination)) if isinstance(tool, Unknown) else tool
    if found is not None:
        return " ".join(_INITRAMFS[found])
    debian, others = (" ".join(_INITRAMFS[tool]) for tool in tuple(InitramfsTool)[:2])
    return f"`{debian}` (Debian) or `{others}` (RPM)"


def initramfs_step(examination: Examination, note: str = "") -> Step:
    """Return the step that rebuilds the boot images of all kernels with this node's tool."""
    why, command = f"{_REBUILD} ({note})" if note else _REBUILD, initramfs_command(examination)
    return instruction(f"{why}: {command}") if "`" in command else Step(why, tuple(command.split()))


def driver_option_plan(examination: Examination, title: str, *changes: Step | str, note: str = "") -> Plan:
    """Return the plan that changes an option of the NVIDIA driver, which takes effect at a reboot."""
    reboot = reboot_step("Reboot to load the driver with its new options")
    return reboot_plan(title, *changes, initramfs_step(examination), reboot, note=note)


def enroll_key_step(examination: Examination) -> Step:
    """Return the step that asks shim to trust the key with which modules are signed on this node."""
    keys = known(map_known(examination.boot, lambda boot: known(boot.mok_keys, ())), ())
    is_ubuntu = known(map_known(examination.distribution, lambda found: found.id), "") == "ubuntu"
    key = _UBUNTU_KEY if is_ubuntu else _DKMS_KEY
    return Step(
        "Ask shim to trust DKMS's key (mok_certificate in /etc/dkms/framework.conf, if set there)",
        ("mokutil", "--import", key if key in keys or not keys else keys[0]),
        undo=("mokutil", "--revoke-import"),
    )
