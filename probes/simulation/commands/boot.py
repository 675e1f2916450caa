"""Start a simulated node: kernel options, services, and the modules that only a configuration loads."""

from __future__ import annotations

import re

from probes.facts.kernel.modprobe_config import read_rules
from probes.facts.kernel.release import read_cmdline
from probes.host.protocol import Host
from probes.simulation.commands.catalogue import perform
from probes.simulation.node.model.program import PEERMEM
from probes.simulation.node.model.tree import Tree
from probes.simulation.node.modules.loading import remove_modules
from probes.simulation.node.system.services import WANTS

_MODULES_DISABLED = "/proc/sys/kernel/modules_disabled"
_OLD_PEERMEM = "nv_peer_mem"
_NO_REDIRECTS = re.compile(r"disable_acs_redir=[\\\"]*([0-9a-f:.;]+)")
_LOADS = re.compile(r"^ExecStart(?:Post|Pre)?=-?\S*modprobe (?:-\S+ )*([\w-]+)", re.M)
_BOOT_SECONDS = 20.0


def start(host: Host, tree: Tree) -> None:
    """Do what kernel and systemd do at boot on a tree that was just built, with its disk in place."""
    tree.add(_MODULES_DISABLED, "0\n")
    for match in _NO_REDIRECTS.finditer(tree.text("/proc/cmdline")):
        for port in filter(None, match[1].split(";")):
            _run(host, tree, "setpci", "-s", port, "ECAP_ACS+6.w=0000:000c")
    # No device triggers these two; each is loaded again, because modprobe.d may have other options now.
    held = {key: count for key, count in tree.references.items() if key[0] == PEERMEM}
    remove_modules(tree, PEERMEM, _OLD_PEERMEM)
    for name in list(tree.units):
        is_enabled = _is_enabled(tree, name)
        if is_enabled and (tree.units[name] != "active" or name == _OLD_PEERMEM):
            _run(host, tree, "systemctl", "restart", name)
        elif not is_enabled and tree.units[name] == "active" and _is_unit(tree, name):
            _run(host, tree, "systemctl", "stop", name)
    if read_rules(host, read_cmdline(host)).at_boot:
        _run(host, tree, "systemctl", "restart", "systemd-modules-load")
    for path, target in sorted(tree.links.items()):
        if path.startswith(f"{WANTS}/"):
            for match in _LOADS.finditer(tree.text(target)):
                _run(host, tree, "modprobe", match[1])
    if PEERMEM in tree.live_modules:
        tree.references.update(held)


def _is_unit(tree: Tree, name: str) -> bool:
    """Return whether the service is enabled by a link; systemd-modules-load is by another target."""
    return tree.is_there(f"/usr/lib/systemd/system/{name}.service") and name != "systemd-modules-load"


def _is_enabled(tree: Tree, name: str) -> bool:
    levels = [path for path in tree.links if path.startswith("/etc/rc") and path.endswith(name)]
    return f"{WANTS}/{name}.service" in tree.links or any(re.search(r"/S\d\d[^/]*$", path) for path in levels)


def _run(host: Host, tree: Tree, *argv: str) -> None:
    perform(host, tree, argv, "", _BOOT_SECONDS)
