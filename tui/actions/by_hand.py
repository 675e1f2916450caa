"""Which steps of a plan gdrtop runs, and which it only shows: those are a person's to decide and to time."""

from __future__ import annotations

from probes.plan import Plan, Step

# Allowed is what is named here, and nothing else: a program that no rule names is shown, never run.
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
    "dkms": "building modules takes minutes and can fail half-way: run it yourself, then look again",
    "dracut": "the boot image is yours to rebuild",
    "git": "software is yours to choose and build",
    "kubectl": "the cluster's settings are not this node's",
    "mlxconfig": "it writes the NIC's firmware settings, which outlive the system",
    "mlxfwmanager": "the NIC's firmware is yours to care for",
    "mlxfwreset": "it resets the NIC",
    "rdma_topo": "the kernel command line is yours to change",
    "mokutil": "keys are enrolled at the console, at the next boot",
    "update-initramfs": "the boot image is yours to rebuild",
}
_SYSTEMCTL = {"daemon-reload", "disable", "enable", "reload", "restart", "start", "stop"}
_DEFAULT = "gdrtop does not run this program"


def why_by_hand(step: Step) -> str:
    """Why a step is only shown, in a sentence; "" where gdrtop runs it."""
    if step.is_instruction:
        return "only a person can do this"
    if step.file is not None:
        return ""
    program = step.argv[0]
    if program == "systemctl" and len(step.argv) > 1 and step.argv[1] not in _SYSTEMCTL:
        verb = step.argv[1]
        return "a reboot is yours to time" if verb == "reboot" else f"gdrtop runs no systemctl {verb}"
    return "" if program in _RUN else _REASONS.get(program, _DEFAULT)


def runnable(plan: Plan) -> tuple[Step, ...]:
    """The steps that gdrtop runs: those before the first that is by hand, on which the others may depend."""
    steps = []
    for step in plan.steps:
        if why_by_hand(step):
            break
        steps.append(step)
    return tuple(steps)


def left_to_do(plan: Plan) -> tuple[Step, ...]:
    """The steps behind what gdrtop runs."""
    return plan.steps[len(runnable(plan)) :]
