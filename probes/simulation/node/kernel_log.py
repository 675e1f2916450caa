"""The kernel log of a simulated node, which anybody may read."""

from __future__ import annotations

from probes.simulation.node.tree import Tree

WARNING = 4
_BOOT = (
    (5, 0.0, "Linux version {kernel} (simulated) #1 SMP"),
    (6, 0.0, "Command line: {cmdline}"),
    (4, 11.204118, "nvidia: loading out-of-tree module taints kernel."),
    (6, 12.731604, "nvidia-nvlink: Nvlink Core is being initialized, major device number 235"),
)


def grow_kernel_log(tree: Tree) -> None:
    """What any boot says."""
    tree.add("/proc/sys/kernel/dmesg_restrict", "0\n")
    tree.commands["dmesg"] = lambda argv, seconds: "".join(tree.kernel_log)
    node = tree.description
    for level, at_seconds, line in _BOOT:
        say(tree, line.format(kernel=node.kernel, cmdline=node.cmdline), at_seconds, level)


def say(tree: Tree, text: str, at_seconds: float = 3000.0, level: int = WARNING) -> None:
    """Adds a line at the end of the kernel log."""
    tree.kernel_log.append(f"<{level}>[{at_seconds:12.6f}] {text}\n")
