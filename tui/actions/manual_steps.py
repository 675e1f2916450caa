"""Which steps of a plan gdrtop runs, and which it only shows as manual steps."""

from __future__ import annotations

from probes.base.plan import Plan, Step

# gdrtop runs these programs and no others.
_PROGRAMS = {
    "chmod",
    "depmod",
    "devlink",
    "ibportstate",
    "ip",
    "journalctl",
    "ln",
    "mkdir",
    "mknod",
    "mlxlink",
    "modprobe",
    "nvidia-modprobe",
    "nvidia-smi",
    "perfquery",
    "rdma",
    "rmmod",
    "scontrol",
    "setpci",
    "show_gids",
    "sminfo",
    "ss",
    "sysctl",
    "systemctl",
    "udevadm",
}
_COMMAND_LINE = "gdrtop does not change the kernel command line"
_PACKAGES = "gdrtop does not install packages"
_REASONS = {
    "apt-get": _PACKAGES,
    "curl": _PACKAGES,
    "dnf": _PACKAGES,
    "dpkg": _PACKAGES,
    "rpm": _PACKAGES,
    "tdnf": _PACKAGES,
    "wget": _PACKAGES,
    "zypper": _PACKAGES,
    "dkms": "building modules takes minutes and can fail halfway; run it yourself, then check again",
    "dracut": "gdrtop does not rebuild the boot image",
    "git": "gdrtop does not build software",
    "grub2-mkconfig": _COMMAND_LINE,
    "grubby": _COMMAND_LINE,
    "kernel-install": _COMMAND_LINE,
    "kubectl": "gdrtop does not change cluster settings",
    "mlxconfig": "mlxconfig writes NIC firmware settings, which survive reinstalls",
    "mlxfwmanager": "gdrtop does not update firmware",
    "mlxfwreset": "gdrtop does not reset NICs",
    "mkinitcpio": "gdrtop does not rebuild the boot image",
    "mokutil": "keys are enrolled at the console during the next boot",
    "rdma_topo": _COMMAND_LINE,
    "rpm-ostree": _COMMAND_LINE,
    "update-grub": _COMMAND_LINE,
    "update-initramfs": "gdrtop does not rebuild the boot image",
}
_SYSTEMCTL = {"daemon-reload", "disable", "enable", "reload", "restart", "start", "stop"}
_DEFAULT = "gdrtop does not run this program"


def why_manual(step: Step) -> str:
    """Return why gdrtop only shows a step, or "" if it runs it."""
    if step.is_instruction:
        return "this step is manual"
    if step.file is not None:
        return ""
    program = step.argv[0]
    if program == "systemctl" and len(step.argv) > 1 and step.argv[1] not in _SYSTEMCTL:
        verb = step.argv[1]
        return f"gdrtop does not {'reboot the node' if verb == 'reboot' else f'run systemctl {verb}'}"
    return "" if program in _PROGRAMS else _REASONS.get(program, _DEFAULT)


def runnable(plan: Plan) -> tuple[Step, ...]:
    """Return the steps before the first manual one, on which the others may depend."""
    steps = []
    for step in plan.steps:
        if why_manual(step):
            break
        steps.append(step)
    return tuple(steps)


def left_to_do(plan: Plan) -> tuple[Step, ...]:
    """Return the steps after those that gdrtop runs."""
    return plan.steps[len(runnable(plan)) :]
