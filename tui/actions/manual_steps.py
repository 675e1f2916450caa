"""Which steps of a plan gdrtop runs, and which it only shows as manual steps."""

from __future__ import annotations

from dataclasses import replace

from probes.base.plan import Plan, Step, sentences

# gdrtop runs these programs and no others.
_PROGRAMS = {
    *("chmod", "depmod", "devlink", "ibportstate", "ip", "journalctl", "ln", "mkdir", "mknod", "mlxlink"),
    *("modprobe", "nvidia-modprobe", "nvidia-smi", "perfquery", "rdma", "rmmod", "scontrol", "setpci"),
    *("show_gids", "sminfo", "ss", "sysctl", "systemctl", "udevadm"),
}
_PACKAGE_MANAGERS = ("apt-get", "curl", "dnf", "dpkg", "rpm", "tdnf", "wget", "zypper")
_BOOT_LOADERS = ("grub2-mkconfig", "grubby", "kernel-install", "rdma_topo", "rpm-ostree", "update-grub")
_BOOT_IMAGES = ("dracut", "mkinitcpio", "update-initramfs")
_REASONS = {
    **dict.fromkeys(_PACKAGE_MANAGERS, "gdrtop does not install packages"),
    **dict.fromkeys(_BOOT_LOADERS, "gdrtop does not change the kernel command line"),
    **dict.fromkeys(_BOOT_IMAGES, "gdrtop does not rebuild the boot image"),
    "dkms": "building modules takes minutes and can fail halfway; run it yourself, then check again",
    "git": "gdrtop does not build software",
    "kubectl": "gdrtop does not change cluster settings",
    "mlxconfig": "mlxconfig writes NIC firmware settings, which survive reinstalls",
    "mlxfwmanager": "gdrtop does not update firmware",
    "mlxfwreset": "gdrtop does not reset NICs",
    "mokutil": "keys are enrolled at the console during the next boot",
}
_SYSTEMCTL = {"daemon-reload", "disable", "enable", "reload", "restart", "start", "stop"}
_DEFAULT = "gdrtop does not run this program"
# What a person runs on a real node, and a simulated node plays, except for the packages of DOCA-OFED.
_SIMULATED = {
    *("apt-get", "curl", "dnf", "dpkg", "tdnf", "wget", "zypper"),
    *("dracut", "grub2-mkconfig", "update-grub", "update-initramfs"),
}

ALL_MANUAL = "every step is manual"  # why nothing of a plan runs


def why_manual(step: Step, is_simulated: bool = False) -> str:
    """Return why gdrtop only shows a step, or "" if it runs it; `is_simulated`: of the step's plan."""
    if step.is_instruction:
        return "this step is manual"
    if step.file is not None:
        return ""
    program = step.argv[0]
    is_ofed = any("doca" in word for word in step.argv)
    if is_simulated and ((program in _SIMULATED and not is_ofed) or step.argv[:2] == ("systemctl", "reboot")):
        return ""
    if program == "systemctl" and len(step.argv) > 1 and step.argv[1] not in _SYSTEMCTL:
        verb = step.argv[1]
        return f"gdrtop does not {'reboot the node' if verb == 'reboot' else f'run systemctl {verb}'}"
    return "" if program in _PROGRAMS else _REASONS.get(program, _DEFAULT)


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
    by_hand = dict.fromkeys(_name_of(step) for step in steps if step.argv and why_manual(step))
    own = f"Simulated: on a real node, these commands are yours: {', '.join(by_hand)}" if by_hand else ""
    return replace(plan, steps=steps, note=sentences(plan.note.removesuffix("."), own), is_simulated=True)


def _name_of(step: Step) -> str:
    """Return the program, with the verb of systemctl."""
    return " ".join(step.argv[: 2 if step.argv[0] == "systemctl" else 1])
