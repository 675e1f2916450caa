"""The commands that change what the next boot does: kernel command line, boot image, Secure Boot keys.

Sources: update-grub(8), grubby(8), grub2-mkconfig(8), kernel-install(8), rpm-ostree(1), update-initramfs(8),
dracut(8), mkinitcpio(8), mokutil(1); Red Hat's, SUSE's and Fedora's manuals name the same commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from probes.base.plan import FileChange, Plan, Step, instruction
from probes.base.unknown import Maybe, Unknown, known
from probes.facts.kernel.boot import BootFacts, BootLoader, InitramfsTool
from probes.facts.pci.config_space import Acs
from probes.facts.system.distribution import Distribution, Family
from probes.plans.common import REBUILD_INITRAMFS
from probes.plans.pcie import CHECK_CMDLINE, fix_redirects, redirects_option
from probes.queries.acs_redirects import translates
from probes.setup.situation import Situation

_GRUB_FILE = "/etc/default/grub.d/gdrtop-{subject}.cfg"
_WHY = "Add {option} to the kernel command line"
_APPLY = "Write the boot loader's configuration"


def command_line_steps(situation: Situation, option: str, subject: str) -> tuple[Step, ...]:
    """Return the steps that add an option to the kernel command line with this node's boot loader.

    `subject`: a word for the name of the file that is written for it.
    """
    boot = situation.boot
    loader = boot.loader if isinstance(boot, BootFacts) else boot
    if isinstance(loader, Unknown):
        return (instruction(f"{_WHY.format(option=option)}, with the boot loader of this node ({loader})."),)
    why = _WHY.format(option=option)
    if loader is BootLoader.GRUB_BLS:
        grubby = ("grubby", "--update-kernel=ALL")
        undo = (*grubby, f"--remove-args={option}")
        return (Step(f"{why} of all kernels", (*grubby, f"--args={option}"), undo=undo),)
    if loader is BootLoader.OSTREE:
        kargs = ("rpm-ostree", "kargs")
        undo = (*kargs, f"--delete-if-present={option}")
        return (Step(why, (*kargs, f"--append-if-missing={option}"), undo=undo),)
    if loader is BootLoader.MACHINE_CONFIG:
        text = f"Add {option} to spec.kernelArguments of the MachineConfig of this node's pool."
        return (instruction(text),)
    if loader is BootLoader.TALOS:
        text = f"Create a Talos boot image with the extra kernel argument {option}, and upgrade to it."
        return (instruction(text),)
    if loader is BootLoader.GRUB:
        return _grub_steps(situation.distribution, option, subject)
    return (instruction(f"Add {option} to /etc/kernel/cmdline."), _kernel_install(situation))


def _grub_steps(distribution: Maybe[Distribution], option: str, subject: str) -> tuple[Step, ...]:
    """Write a file of our own where the distribution reads grub.d; else edit /etc/default/grub."""
    why = _WHY.format(option=option)
    if not isinstance(distribution, Unknown) and distribution.family is Family.DEBIAN:
        quoted = option.replace('"', r"\"")
        text = f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {quoted}"\n'
        file = FileChange(_GRUB_FILE.format(subject=subject), text)
        return (Step(why, file=file), Step(_APPLY, ("update-grub",)))
    return (
        instruction(f"Add {option} to GRUB_CMDLINE_LINUX in /etc/default/grub."),
        Step(_APPLY, ("grub2-mkconfig", "-o", "/boot/grub2/grub.cfg")),
    )


def _kernel_install(situation: Situation) -> Step:
    boot, release = situation.boot, situation.examination.node.kernel_release
    kernels = known(boot.kernels, ()) if isinstance(boot, BootFacts) else ()
    images = (known(kernel.image, "") for kernel in kernels if kernel.release == release)
    image = next(filter(None, images), "")
    if not image or isinstance(release, Unknown):
        return instruction("Install the boot entry of each kernel again: kernel-install add RELEASE IMAGE")
    return Step("Write the boot entry of the running kernel", ("kernel-install", "add", release, image))


def pass_through_plan(situation: Situation, option: str, general: Plan) -> Plan:
    """Return the plan that sets the IOMMU to passthrough with this node's boot loader; `general`: for any."""
    steps = (
        *command_line_steps(situation, option, "iommu"),
        instruction("Before the reboot, see what it brings: gdrtop check --after-reboot", needs_root=False),
        Step("Reboot; gdrtop then reads /proc/cmdline and the IOMMU groups again", ("systemctl", "reboot")),
    )
    return replace(general, steps=steps)


def redirects_off_plan(situation: Situation, ports: Mapping[str, Acs]) -> Plan:
    """Return the plan that clears ACS redirects now, and at every boot where GRUB's files can say it.

    Only for GRUB on Debian and Ubuntu, where linux-rdma's rdma_topo quotes `;` in the same way. Elsewhere the
    lasting steps are manual.
    """
    general = fix_redirects(situation.examination, ports)
    # An address that the IOMMU translates goes up anyway: then only the boots after this one matter.
    now = () if translates(situation.examination) else tuple(step for step in general.steps if step.argv)
    lasting = command_line_steps(situation, redirects_option(ports), "acs")
    if not any(step.file for step in lasting):
        return general
    return replace(general, steps=(*now, *lasting, instruction(CHECK_CMDLINE, needs_root=False)))


def initramfs_step(boot: Maybe[BootFacts]) -> Step:
    """Return the step that rebuilds the boot images of all kernels with the tool that this node has.

    The kernel that boots next may be newer than the running one, for which alone dracut --force would work.
    """
    tool = boot.initramfs if isinstance(boot, BootFacts) else boot
    commands = {
        InitramfsTool.UPDATE_INITRAMFS: ("update-initramfs", "-u", "-k", "all"),
        InitramfsTool.DRACUT: ("dracut", "--regenerate-all", "--force"),
        InitramfsTool.MKINITCPIO: ("mkinitcpio", "-P"),
    }
    if isinstance(tool, Unknown):
        return instruction(f"{REBUILD_INITRAMFS} with the distribution's tool ({tool})")
    return Step(REBUILD_INITRAMFS, commands[tool])


def for_this_node(situation: Situation, plan: Plan | None) -> Plan | None:
    """Return the plan of a check with this node's own commands instead of those of several distributions.

    Fixes of checks do not know the distribution.
    """
    if plan is None:
        return None
    boot, steps = situation.boot, []
    keys = known(boot.mok_keys, ()) if isinstance(boot, BootFacts) else ()
    for step in plan.steps:
        if step.rebuilds_initramfs:
            step = initramfs_step(boot)
            if step in steps:  # one distribution's command stood beside another's
                continue
        elif step.argv[:2] == ("mokutil", "--import") and keys and step.argv[2] not in keys:
            step = replace(step, argv=("mokutil", "--import", keys[0]))
        steps.append(step)
    return replace(plan, steps=tuple(steps))
