"""Module files of a simulated node: modinfo, Module.symvers, DKMS, OFED, the boot, the kernel log."""

from __future__ import annotations

from dataclasses import dataclass, field

from probes.simulation.description import NodeDescription
from probes.simulation.tree import Tree, file_of, hash_of, needs_of
from probes.unknown import Maybe, Reason, Unknown

MODULES_LOAD = "/usr/lib/systemd/system/systemd-modules-load.service"
OFED_SYMVERS = "/usr/src/ofa_kernel/default/Module.symvers"
_OFED_RELEASE = "MLNX_OFED_LINUX-24.10-0.7.0.0"


@dataclass
class Modinfo:
    """modinfo(8) of a node: the fields of each module's file, which a fault may change."""

    files: dict[str, dict[str, str]] = field(default_factory=dict)

    def __call__(self, argv: tuple[str, ...], seconds: float) -> Maybe[str]:
        """The blocks of the modules named, those that there are."""
        del seconds
        blocks = [self.files[name] for name in argv[1:] if name in self.files]
        return "".join(f"{key + ':':<16}{value}\n" for block in blocks for key, value in block.items())


def grow_module_files(tree: Tree) -> None:
    """Adds modinfo, the symbols to build against, DKMS, OFED, systemd-modules-load and a quiet kernel log."""
    node = tree.description
    files = {name: _fields(node, name) for name in (*node.modules.live, *node.modules.on_disk)}
    tree.commands["modinfo"] = Modinfo(files)
    symvers = "0x1b2c3d4e\tprintk\tvmlinux\tEXPORT_SYMBOL\t\n"
    tree.add(f"/lib/modules/{node.kernel}/build/Module.symvers", symvers)
    for name in _packages(node):
        _dkms(tree, name)
    if node.modules.ofed:
        line = (
            "0x{:08x}\tib_{}register_peer_memory_client\tdrivers/infiniband/core/ib_core\tEXPORT_SYMBOL\t\n"
        )
        tree.add(OFED_SYMVERS, line.format(0x6E1AAA01, "") + line.format(0x6E1AAA02, "un"))
        tree.add("/usr/bin/ofed_info", "#!/bin/sh\n")
        tree.commands.setdefault("ofed_info", lambda argv, seconds: f"{_OFED_RELEASE}:\n")
    tree.add(MODULES_LOAD, "[Unit]\nDescription=Load Kernel Modules\n")
    tree.link(
        "/usr/lib/systemd/system/sysinit.target.wants/systemd-modules-load.service",
        f"../{MODULES_LOAD.rpartition('/')[2]}",
    )
    set_unit_state(tree, "systemd-modules-load", "active")
    log_line(tree, 0.0, f"Linux version {node.kernel} (simulated)")


def modinfo_of(tree: Tree) -> Modinfo:
    """The node's modinfo, to be changed."""
    command = tree.commands["modinfo"]
    assert isinstance(command, Modinfo)
    return command


def set_field(tree: Tree, module: str, field_name: str, value: str) -> None:
    """What modinfo says of a module's file, where there still is one."""
    if module in modinfo_of(tree).files:
        modinfo_of(tree).files[module][field_name] = value


def set_unit_state(tree: Tree, name: str, state: str) -> None:
    """What systemctl says of a unit; what it says of others stays."""
    before = tree.commands.get("systemctl")

    def answer(argv: tuple[str, ...], seconds: float) -> Maybe[str]:
        text = "" if before is None else before(argv, seconds)
        if isinstance(text, Unknown):
            text = ""
        blocks = [
            block for block in text.split("\n\n") if block.strip() and f"Id={name}.service" not in block
        ]
        if f"{name}.service" in argv:
            blocks.append(f"Id={name}.service\nActiveState={state}\n")
        # Of a unit that nothing is said about, systemctl says that it is not active.
        told = "\n".join(blocks)
        blocks.extend(
            f"Id={unit}\nActiveState=inactive\n"
            for unit in argv
            if unit.endswith(".service") and f"Id={unit}" not in told
        )
        return "\n\n".join(block.strip("\n") for block in blocks) + "\n"

    tree.commands["systemctl"] = answer


def log_line(tree: Tree, at: float, text: str, level: int = 6) -> None:
    """One more line in the kernel log."""
    before = tree.commands.get("dmesg")

    def answer(argv: tuple[str, ...], seconds: float) -> Maybe[str]:
        earlier = "" if before is None else before(argv, seconds)
        return f"{'' if isinstance(earlier, Unknown) else earlier}<{level}>[{at:12.6f}] {text}\n"

    tree.commands["dmesg"] = answer


def without_modinfo(tree: Tree) -> None:
    """A node on which modinfo is not installed."""
    tree.commands["modinfo"] = lambda argv, seconds: Unknown(Reason.NOT_THERE, argv[0], "not installed")


def _fields(node: NodeDescription, name: str) -> dict[str, str]:
    path = f"/lib/modules/{node.kernel}/{file_of(node, name)}"
    fields = {"filename": path}
    if name.startswith("nvidia"):
        fields["version"] = node.driver.version
        open_license = "Dual BSD/GPL" if name == "nvidia_peermem" else "Dual MIT/GPL"
        fields["license"] = open_license if node.driver.flavour == "open" else "NVIDIA"
    else:
        fields["license"] = "Dual BSD/GPL"
    fields["srcversion"] = f"{abs(hash_of(name)):024X}"[:24]
    fields["depends"] = ",".join(
        need.replace("_", "-") if need.startswith("nvidia_") else need for need in needs_of(node, name)
    )
    fields["name"] = name
    fields["vermagic"] = f"{node.kernel} SMP preempt mod_unload modversions"
    if path.partition(node.kernel)[2].startswith("/kernel/"):
        fields["signer"] = "Build time autogenerated kernel key"
    return {key: value for key, value in fields.items() if value}


def _packages(node: NodeDescription) -> tuple[str, ...]:
    return ("nvidia", "mlnx-ofed-kernel") if node.modules.ofed else ("nvidia",)


def _dkms(tree: Tree, name: str) -> None:
    """A package that is built and installed for the running kernel."""
    node = tree.description
    version = node.driver.version if name == "nvidia" else "24.10"
    below = f"{version}/{node.kernel}/{node.architecture}"
    file = "nvidia.ko" if name == "nvidia" else "ib_core.ko"
    tree.add(f"/var/lib/dkms/{name}/{below}/module/{file}", "")
    tree.link(f"/var/lib/dkms/{name}/kernel-{node.kernel}-{node.architecture}", below)
