"""The kernel log of a simulated node, which anybody may read."""

from __future__ import annotations

from probes.simulation.tree import Tree
from probes.unknown import Maybe, Unknown

_BOOT = (
    "<5>[    0.000000] Linux version {kernel} (simulated) #1 SMP",
    "<6>[    0.000000] Command line: {cmdline}",
    "<4>[   11.204118] nvidia: loading out-of-tree module taints kernel.",
    "<6>[   12.731604] nvidia-nvlink: Nvlink Core is being initialized, major device number 235",
)


def grow_kernel_log(tree: Tree) -> None:
    """What any boot says."""
    tree.add("/proc/sys/kernel/dmesg_restrict", "0\n")
    node = tree.description
    for line in _BOOT:
        _append(tree, line.format(kernel=node.kernel, cmdline=node.cmdline))


def say(tree: Tree, text: str, at_seconds: float = 3000.0) -> None:
    """Adds a line at the end of the kernel log."""
    _append(tree, f"<4>[{at_seconds:12.6f}] {text}")


def _append(tree: Tree, line: str) -> None:
    before = tree.commands.get("dmesg")

    def dmesg(argv: tuple[str, ...], seconds: float) -> Maybe[str]:
        earlier = before(argv, seconds) if before else ""
        return earlier if isinstance(earlier, Unknown) else f"{earlier}{line}\n"

    tree.commands["dmesg"] = dmesg
