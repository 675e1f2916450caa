"""The node before its setup: the distribution is installed, and nothing of NVIDIA's."""

from __future__ import annotations

from dataclasses import replace

from probes.simulation.faults.fault import ChangeDescription, Faults, fault
from probes.simulation.faults.modules import take_driver_from_disk
from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import Tree
from probes.simulation.node.modules.loading import remove_modules
from probes.simulation.node.system.software import remove_products

FAULTS = Faults()

# From those that use others to those that are used.
_MODULES = (
    *("nvidia_fs", "gdrdrv", "efa_nv_peermem", "nvidia_peermem"),
    *("nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia"),
)
_RUNNING = ("/proc/driver/nvidia", "/dev/nvidia", "/etc/modules-load.d/nvidia")

_FOUND = ("nvidia-not-loaded", "perftest-missing")

# After the word in the fault's name: ID, VERSION_ID and PRETTY_NAME of os-release, and a kernel of it.
_DISTRIBUTIONS = {
    "debian": ("debian", "13", "Debian GNU/Linux 13 (trixie)", "6.12.48+deb13-amd64"),
    "sles": ("sles", "15.6", "SUSE Linux Enterprise Server 15 SP6", "6.4.0-150600.23.38-default"),
    "azure-linux": ("azurelinux", "3.0", "Microsoft Azure Linux 3.0", "6.6.96.2-2.azl3"),
    "talos": ("talos", "v1.13.0", "Talos (v1.13.0)", "6.18.5-talos"),
    "openshift": ("rhcos", "4.18", "Red Hat Enterprise Linux CoreOS 418", "5.14.0-427.40.1.el9_4.x86_64"),
}


def _nothing_installed(tree: Tree) -> None:
    from probes.simulation.commands.boot import end_programs

    end_programs(tree)
    remove_modules(tree, *(name for name in _MODULES if name in tree.live_modules))
    take_driver_from_disk(tree)
    remove_products(tree)
    if tree.description.system.id == "rhcos":
        tree.add("/etc/machine-config-daemon/currentconfig", "{}")
    for path in [path for path in tree.files if path.startswith(_RUNNING)]:
        tree.remove(path)


def _on_distribution(name: str) -> ChangeDescription:
    id_, version, pretty, kernel = _DISTRIBUTIONS[name]

    def change(node: NodeDescription) -> NodeDescription:
        system = replace(node.system, id=id_, version=version, like="", older_kernel="", packages={})
        system = replace(system, boot="grub-bls" if name == "openshift" else "grub")
        return replace(node, distribution=pretty, kernel=kernel, system=system)

    return change


_NOTHING = "Nothing is installed yet"
FAULTS += [
    fault("new-node", f"{_NOTHING}: no NVIDIA driver, no Fabric Manager, no benchmark tools",
          _nothing_installed, finds=_FOUND),
    *(fault(f"new-node-{name}", f"{_NOTHING}, on {row[2]}", _nothing_installed,
            change_description=_on_distribution(name), finds=_FOUND, on="pcie-l40s")
      for name, row in _DISTRIBUTIONS.items()),
]  # fmt: skip
