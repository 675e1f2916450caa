"""The commands that change what the next boot does: kernel command line, boot image, Secure Boot keys.

Sources: update-grub(8), grubby(8), grub2-mkconfig(8), kernel-install(8), rpm-ostree(1), update-initramfs(8),
dracut(8), mkinitcpio(8), mokutil(1); Red Hat's, SUSE's and Fedora's manuals name the same commands.
"""

from __future__ import annotations

from dataclasses import replace

from probes.base.plan import FileChange, Plan, Step, instruction
from probes.base.unknown import Maybe, Unknown, known
from probes.facts.kernel.boot import BootFacts, BootLoader, InitramfsTool
from probes.facts.system.distribution import Distribution, Family
from probes.plans.common import REBUILD_INITRAMFS, reboot_step
from probes.plans.pcie import CHECK_CMDLINE, fix_redirects, pass_through_option, redirects_option
from probes.queries.acs_redirects import redirects_of, translates
from probes.setup.situation import Situation
from probes.setup.step import SetupStep
from probes.setup.steps.definition import SetupFacts

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
        return (instruction(f"{_WHY.format(option=option)}, with this node's boot loader ({loader})."),)
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
        text = f"Add {option} to spec.kernelArguments in the MachineConfig for this node's pool."
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
        return instruction("Reinstall the boot entry of each kernel: kernel-install add RELEASE IMAGE")
    return Step("Write the running kernel's boot entry", ("kernel-install", "add", release, image))


def with_pass_through(facts: SetupFacts, step: SetupStep) -> SetupStep:
    """Name the commands of this node's boot loader in the plan that sets the IOMMU to passthrough."""
    if step.plan is None or "iommu-translated" not in step.findings:
        return step
    option = pass_through_option(facts.examination)
    steps = (
        *command_line_steps(facts.situation, option, "iommu"),
        instruction("Before rebooting, see what will change: gdrtop forecast", needs_root=False),
        reboot_step("Reboot; gdrtop then reads /proc/cmdline and the IOMMU groups again"),
    )
    return replace(step, plan=replace(step.plan, steps=steps))


def with_redirects_off(facts: SetupFacts, step: SetupStep) -> SetupStep:
    """Clear the ACS redirects now, and at every boot where GRUB's files can say it.

    Only for GRUB on Debian and Ubuntu, where linux-rdma's rdma_topo quotes `;` in the same way. Elsewhere the
    lasting steps are manual.
    """
    examination = facts.examination
    ports = redirects_of(examination).ports
    if step.plan is None or step.findings != ("acs-redirect-enabled",) or not ports:
        return step
    general = fix_redirects(examination, ports)
    lasting = command_line_steps(facts.situation, redirects_option(ports), "acs")
    if not any(command.file for command in lasting):
        return replace(step, plan=general)
    # An address that the IOMMU translates goes up anyway: then only the boots after this one matter.
    now = () if translates(examination) else tuple(command for command in general.steps if command.argv)
    steps = (*now, *lasting, instruction(CHECK_CMDLINE, needs_root=False))
    return replace(step, plan=replace(general, steps=steps))


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
