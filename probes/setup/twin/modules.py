"""The loaded modules of a twin: those of the node with their reference counts, and what commands changed.

No twin can know what a module brings that was not loaded when the twin was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from probes.base.unknown import Reason, Unknown, known
from probes.facts.kernel.modules import PROC_MODULES, PROC_MODULES_LIMIT_BYTES
from probes.facts.pci.nic_families import EFA, RDMA_MODULE_OF, SLINGSHOT, VERBS_MODULES
from probes.setup.twin.tree import TwinTree
from probes.simulation.node.modules.modules import users_of

# Paths that appear with a module, or whose content changes with it.
_PATHS = {
    "nvidia": ("/proc/driver/nvidia", "/sys/module/nvidia/parameters", "/dev/nvidia"),
    "nvidia_uvm": ("/sys/module/nvidia_uvm/parameters",),
    "nvidia_peermem": ("/sys/kernel/mm/memory_peers",),
    "nv_peer_mem": ("/sys/kernel/mm/memory_peers",),
    **{
        name: ("/sys/class/net", "/sys/class/infiniband", f"/sys/module/{name}/parameters")
        for name in RDMA_MODULE_OF
    },
    **dict.fromkeys(VERBS_MODULES, ("/sys/class/infiniband", "/dev/infiniband")),
    **dict(zip(SLINGSHOT.modules, (("/sys/class/cxi", "/dev/cxi"), ("/dev/cxi",)), strict=True)),
    "ib_uverbs": ("/sys/class/infiniband_verbs", "/dev/infiniband"),
    "rdma_cm": ("/dev/infiniband/rdma_cm",),
    "gdrdrv": ("/dev/gdrdrv",),
}
# Devices below /sys/devices that a driver creates, and the link to the driver.
_OF_DEVICES = {
    **dict.fromkeys(RDMA_MODULE_OF, ("/infiniband", "/net", "/driver")),
    **dict.fromkeys(RDMA_MODULE_OF.values(), ("/infiniband",)),
    **dict.fromkeys(EFA.pci_drivers, ("/infiniband", "/driver")),
    **dict.fromkeys(SLINGSHOT.pci_drivers, ("/cxi", "/net", "/driver")),
    "nvidia": ("/driver",),
}
_ANSWERS = {
    "nvml": ("nvidia",),
    "cuda": ("nvidia", "nvidia_uvm"),
    "dmabuf": (*RDMA_MODULE_OF, *VERBS_MODULES, "ib_uverbs", "ib_core"),
    "rdma": ("ib_core", *VERBS_MODULES),
}


class TwinModules:
    """The modules that are loaded now, against those that were loaded when the twin was made."""

    def __init__(self, tree: TwinTree) -> None:
        self._tree = tree
        self._old = tuple(tree.live_modules)
        self.idle: frozenset[str] = frozenset()  # drivers without devices, which bring nothing
        for name in self._old:
            tree.references[name, "node"] = self._references(name)

    @property
    def have_changed(self) -> bool:
        """Return whether a module was loaded or removed on the twin."""
        return tuple(self._tree.live_modules) != self._old

    @property
    def new(self) -> tuple[str, ...]:
        """Return the modules that were loaded on the twin and not on the node."""
        known_ones = {*self._old, *self.idle}
        return tuple(name for name in self._tree.live_modules if name not in known_ones)

    def is_of_node(self, name: str) -> bool:
        """Return whether a module was loaded when the twin was made."""
        return name in self._old

    def is_removed(self, name: str) -> bool:
        """Return whether a module of the node was removed on the twin."""
        return name in self._old and name not in self._tree.live_modules

    def count(self, name: str) -> int:
        """Return a module's reference count, without users that were removed and with new ones."""
        words = self._lines().get(name)
        if words is None or not words[2].isdecimal():
            return 0
        gone = sum(self.is_removed(user) for user in _users(words))
        new = sum(name in self._needs(user) for user in self.new)
        return max(0, int(words[2]) - gone + new)

    def proc_modules(self) -> str:
        """Return /proc/modules as the node's kernel would show it now."""
        lines, old = [], self._lines()
        for name in reversed(self._tree.live_modules):
            words = old.get(name, [name, "65536", "0", "-", "Live", "0x0", "(OE)"])
            users = [user for user in _users(words) if user in self._tree.live_modules]
            users += [user for user in self.new if user in users_of(self._tree, name)]
            count = self.count(name) if name in old else len(users)
            shown = "".join(f"{user}," for user in dict.fromkeys(users)) or "-"
            lines.append(" ".join([name, words[1], str(count), shown, *words[4:]]) + "\n")
        return "".join(lines)

    def _references(self, name: str) -> Callable[[float], int]:
        return lambda _: self.count(name) - len(users_of(self._tree, name))

    def _lines(self) -> dict[str, list[str]]:
        """Return the words of the node's own lines of /proc/modules, by module."""
        text = known(self._tree.base.read(PROC_MODULES, PROC_MODULES_LIMIT_BYTES), "")
        return {words[0]: words for line in text.split("\n") if len(words := line.split()) > 4}

    def _needs(self, name: str) -> tuple[str, ...]:
        live = self._tree.live_modules
        return tuple(other for other in live if name in users_of(self._tree, other))


def _users(words: list[str]) -> list[str]:
    """Return the modules that a line of /proc/modules names as users."""
    return [user for user in words[3].split(",") if user not in ("", "-", "[permanent]")]


def unknown_path(path: str, new_modules: Iterable[str]) -> Unknown | None:
    """Return why a path is unknown after these modules were loaded on the twin; None: it is not."""
    for module in new_modules:
        parts = _OF_DEVICES.get(module, ()) if path.startswith("/sys/devices/") else ()
        if path.startswith(_PATHS.get(module, ())) or any(f"{part}/" in f"{path}/" for part in parts):
            return not_known(path, module)
    return None


def unknown_answer(kind: str, new_modules: Iterable[str]) -> Unknown | None:
    """Return why an answer ("nvml", "cuda", "dmabuf", "rdma") is unknown after these modules were loaded."""
    return next((not_known(kind, module) for module in new_modules if module in _ANSWERS[kind]), None)


def not_known(source: str, module: str) -> Unknown:
    """Return that only the loaded module shows this."""
    return Unknown(Reason.NOT_YET, source, f"only known once {module} is loaded")
