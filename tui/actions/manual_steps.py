"""Which steps of a plan gdrtop runs, and which it only shows as manual steps."""

from __future__ import annotations

from dataclasses import replace

from probes.base.plan import Plan, Step, sentences
from probes.facts.kernel.boot_loader import GRUB_SETTINGS
from probes.plans.boot import COMMAND_LINE_PROGRAMS, INITRAMFS_PROGRAMS
from probes.plans.common import is_reboot
from probes.plans.packages import PACKAGE_PROGRAMS

# gdrtop runs these programs and no others.
_PROGRAMS = {
    *("chmod", "depmod", "devlink", "ibportstate", "ip", "journalctl", "ln", "mkdir", "mknod", "mlxlink"),
    *("modprobe", "nvidia-modprobe", "nvidia-smi", "perfquery", "rdma", "rmmod", "scontrol", "setpci"),
    *("show_gids", "sminfo", "ss", "sysctl", "systemctl", "udevadm"),
}
_COMMAND_LINE = "gdrtop does not change the kernel command line"
_REASONS = {
    **dict.fromkeys(PACKAGE_PROGRAMS, "gdrtop does not install packages"),
    **dict.fromkeys((*COMMAND_LINE_PROGRAMS, "rdma_topo"), _COMMAND_LINE),
    **dict.fromkeys(INITRAMFS_PROGRAMS, "gdrtop does not rebuild the boot image"),
    "dkms": "building modules takes minutes and can fail halfway; run it yourself, then check again",
    "git": "gdrtop does not build software",
    **dict.fromkeys(("kubectl", "oc"), "gdrtop does not change cluster settings"),
    "mlxconfig": "mlxconfig writes NIC firmware settings, which survive reinstalls",
    "mlxfwmanager": "gdrtop does not update firmware",
    "mlxfwreset": "gdrtop does not reset NICs",
    "mokutil": "keys are enrolled at the console during the next boot",
}
_SYSTEMCTL = {"daemon-reload", "disable", "enable", "reload", "restart", "start", "stop"}
_DEFAULT = "gdrtop does not run this program"

ALL_MANUAL = "every step is manual"  # why nothing of a plan runs


def why_manual(step: Step, is_simulated: bool = False) -> str:
    """Return why gdrtop only shows a step, or "" if it runs it; `is_simulated`: of the step's plan."""
    if step.is_instruction:
        return "this step is manual"
    if step.file is not None:
        is_new_option = step.file.text is not None and step.file.path.startswith(GRUB_SETTINGS)
        return _COMMAND_LINE if is_new_option and not is_simulated else ""
    program = step.argv[0]
    if is_simulated and _is_played(step):
        return ""
    if program == "systemctl" and len(step.argv) > 1 and step.argv[1] not in _SYSTEMCTL:
        verb = step.argv[1]
        return f"gdrtop does not {'reboot the node' if verb == 'reboot' else f'run systemctl {verb}'}"
    return "" if program in _PROGRAMS or step.is_cordon else _REASONS.get(program, _DEFAULT)


def _is_played(step: Step) -> bool:
    """Return whether a simulated node plays what a person runs on a real one: not packages of DOCA-OFED."""
    from probes.simulation.commands.catalogue import HANDLERS

    is_played = step.argv[0] in HANDLERS and not any("doca" in word for word in step.argv)
    return is_reboot(step) or (is_played and step.argv[0] != "systemctl")


def runnable(plan: Plan) -> tuple[Step, ...]:
    """Return the steps before the first manual one, on which the others may depend."""
    steps = []
    for step in plan.steps:
        if why_manual(step, plan.is_simulated):
            break
        steps.append(step)
    return tuple(steps)


def left_to_do(plan: Plan) -> tuple[Step, ...]:
    """Return the steps after those that gdrtop runs."""
    return plan.steps[len(runnable(plan)) :]


def as_simulated(plan: Plan) -> Plan:
    """Return the plan for a simulated node, which also plays manual commands; advice comes last."""
    steps = plan.steps
    if not all(step.is_instruction for step in steps):
        steps = tuple(sorted(steps, key=lambda step: step.is_instruction and not step.needs_root))
    yours = (step.argv for step in steps if step.argv and why_manual(step))
    by_hand = dict.fromkeys(" ".join(argv[: 2 if argv[0] == "systemctl" else 1]) for argv in yours)
    own = f"Simulated: on a real node, these commands are yours: {', '.join(by_hand)}" if by_hand else ""
    return replace(plan, steps=steps, note=sentences(plan.note.removesuffix("."), own), is_simulated=True)
