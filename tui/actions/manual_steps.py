"""Which steps of a plan gdrtop runs, and which it only shows, for a person to decide and to time."""

from __future__ import annotations

from probes.base.plan import Plan, Step

# gdrtop runs these programs and no others.
_RUN = {
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
    "setpci",
    "show_gids",
    "sminfo",
    "ss",
    "sysctl",
    "systemctl",
    "udevadm",
}
_REASONS = {
    "dkms": "building modules takes minutes and can fail halfway: run it yourself, then check again",
    "dracut": "the boot image is yours to rebuild",
    "git": "software is yours to choose and build",
    "kubectl": "the cluster's settings are not this node's",
    "mlxconfig": "it writes the NIC's firmware settings, which outlive the system",
    "mlxfwmanager": "firmware updates are yours to plan",
    "mlxfwreset": "it resets the NIC",
    "rdma_topo": "the kernel command line is yours to change",
    "mokutil": "keys are enrolled at the console, at the next boot",
    "update-initramfs": "the boot image is yours to rebuild",
}
_SYSTEMCTL = {"daemon-reload", "disable", "enable", "reload", "restart", "start", "stop"}
_DEFAULT = "gdrtop does not run this program"


def why_by_hand(step: Step) -> str:
    """Say why gdrtop only shows a step; "" where it runs it."""
    if step.is_instruction:
        return "this step is manual"
    if step.file is not None:
        return ""
    program = step.argv[0]
    if program == "systemctl" and len(step.argv) > 1 and step.argv[1] not in _SYSTEMCTL:
        verb = step.argv[1]
        return "a reboot is yours to time" if verb == "reboot" else f"gdrtop runs no systemctl {verb}"
    return "" if program in _RUN else _REASONS.get(program, _DEFAULT)


def runnable(plan: Plan) -> tuple[Step, ...]:
    """Return the steps before the first manual one, on which the others may depend."""
    steps = []
    for step in plan.steps:
        if why_by_hand(step):
            break
        steps.append(step)
    return tuple(steps)


def left_to_do(plan: Plan) -> tuple[Step, ...]:
    """Return the steps after those that gdrtop runs."""
    return plan.steps[len(runnable(plan)) :]
