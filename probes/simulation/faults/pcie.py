"""Faults of the PCIe bus between GPUs and NICs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from probes.facts.pci.functions import DEVICES
from probes.simulation.faults.fault import ChangeTree, as_change, described
from probes.simulation.node.devices import pci as config
from probes.simulation.node.model.description import NodeDescription, RootDescription
from probes.simulation.node.model.tree import Content, Tree, log

_GUEST = ("QEMU", "Standard PC (Q35 + ICH9, 2009)")


def _function(tree: Tree, device: str) -> str | None:
    """Return the BDF of a NIC or of "GPU4"; None if another fault has removed it."""
    gpus = {f"GPU{number}": gpu.bdf for number, gpu in enumerate(tree.gpus)}
    bdf = (gpus | {nic.name: nic.bdf for nic in tree.nics}).get(device)
    return bdf if bdf and _is_there(tree, bdf) else None


def _is_there(tree: Tree, bdf: str) -> bool:
    return f"{DEVICES}/{bdf}" in tree.links


def _above(tree: Tree, bdf: str) -> str:
    """Return the port above a function."""
    return config.real_path(tree, bdf).split("/")[-2]


def _on(device: str) -> Callable[[Callable[[Tree, str], object]], ChangeTree]:
    """Make a change of a function one of the tree; it gets the BDF, unless another fault has removed it."""
    return lambda change: lambda tree: change(tree, bdf) if (bdf := _function(tree, device)) else None


@as_change
def _set_registers(tree: Tree, devices: Mapping[str, Mapping[str, tuple[int, int]]]) -> None:
    """Change bits in configuration spaces: value and mask by the names of registers in devices/pci.py."""
    for device, registers in devices.items():
        if bdf := _function(tree, device):
            for name, bits in registers.items():
                config.set_bits(tree, bdf, getattr(config, name), *bits)


@as_change
def _set_file(tree: Tree, device: str, name: str, content: Content) -> None:
    if bdf := _function(tree, device):
        tree.add(f"{config.real_path(tree, bdf)}/{name}", content)


@as_change
def _count_errors(tree: Tree, device: str, kind: str, errors: Mapping[str, int]) -> None:
    _set_file(device, f"aer_dev_{kind}", config.counts(kind, **errors))(tree)


_corrected_errors = _count_errors("GPU0", "correctable", {"BadTLP": 1294})
_gone = _set_file("mlx5_4", "config", b"\xff" * 4096)


@_on("mlx5_2")
def _require_ats(tree: Tree, nic: str) -> None:
    config.set_bits(tree, _above(tree, nic), config.ACS_CONTROL, 0x5D, 0x5D)


@as_change
def _set_links(tree: Tree, devices: Mapping[str, Mapping[str, str]], both: bool = True) -> None:
    """Change the link files of functions and of the port above each, or of the ports alone."""
    for device, files in devices.items():
        bdf = _function(tree, device)
        for end in (bdf, _above(tree, bdf)) if bdf else ():
            for name, value in files.items():
                if both or end != bdf or name.startswith("current"):
                    tree.add(f"{config.real_path(tree, end)}/{name}", f"{value}\n")


@_on("mlx5_9")
def _without_extended_space(tree: Tree, nic: str) -> None:
    for bdf in (nic, _above(tree, nic)):
        path = f"{config.real_path(tree, bdf)}/config"
        content = tree.files[path]
        if isinstance(content, bytes):
            tree.add(path, content[:256])


@_on("mlx5_1")
def _log_refused_dma(tree: Tree, nic: str) -> None:
    """Log an access of a NIC that the IOMMU refused (drivers/iommu/intel/dmar.c, dmar_fault_do_one)."""
    log(tree, "DMAR: DRHD: handling fault status reg 2", level=3)
    text = "fault addr 0x2f000000000 [fault reason 0x05] PTE Write access is not set"
    log(tree, f"DMAR: [DMA Write NO_PASID] Request device [{nic[5:]}] {text}", level=3)


def _ports_below_switches(tree: Tree) -> list[str]:
    """Return all downstream ports above GPUs and NICs: firmware sets those of every switch alike."""
    ends = [*(gpu.bdf for gpu in tree.gpus), *(nic.bdf for nic in tree.nics)]
    ports: dict[str, None] = {}
    for bdf in ends:
        if _is_there(tree, bdf):
            _, _, _, _, _root_port, *below = config.real_path(tree, bdf).split("/")
            ports |= dict.fromkeys(below[1:-1:2])  # after each switch's upstream port
    return list(ports)


def _acs_on(tree: Tree) -> None:
    for port in _ports_below_switches(tree):
        config.set_bits(tree, port, config.ACS_CONTROL, 0x1D, 0x1D)


def _ats_off(tree: Tree) -> None:
    for nic in tree.nics:
        config.set_bits(tree, nic.bdf, config.ATS_CONTROL, 0, 0x8000)


def _wrong_direct_nic(tree: Tree) -> None:
    """Let the first GPU's root port fail in rdma_topo; add a ConnectX DMA function to a node without one."""
    port = config.real_path(tree, _above(tree, tree.gpus[0].bdf))
    if not tree.dma_functions:
        bdf = f"{port.rpartition('/')[2][:5]}02:00.0"
        path = f"{port}/{bdf}"
        tree.add(f"{path}/uevent", f"PCI_CLASS=80100\nPCI_ID=15B3:2100\nPCI_SLOT_NAME={bdf}\n")
        tree.add(f"{path}/numa_node", "0\n")
        tree.add(f"{path}/config", tree.files[f"{port}/config"])
        tree.link(f"{DEVICES}/{bdf}", f"../../../{path.removeprefix('/sys/')}")
    tree.add("/usr/sbin/rdma_topo", "#!/usr/bin/env python3\n")
    output = (
        "OK\tAll ConnectX DMA functions have correct PCI topology\n"
        f"FAIL\tACS for grace_rp {port.rpartition('/')[2]} has incorrect values 0011101 != xx111x0, "
        "(0x1d != 0x1c)\n"
    )
    tree.commands["rdma_topo"] = lambda argv, seconds: output


def _translated(description: NodeDescription) -> NodeDescription:
    cmdline = re.sub(r" iommu(=pt|\.passthrough=1)", " intel_iommu=on", description.cmdline)
    return replace(description, iommu="DMA-FQ", cmdline=cmdline)


def _as_guest(description: NodeDescription) -> NodeDescription:
    """Turn the node into a virtual machine that shows each device on a root bus, unless it is one."""
    if any(root.flat for root in description.root):
        return description
    devices = ["gpu", "gpu", "gpu", "gpu", "compute mlx5_0", "compute mlx5_1"]
    return replace(
        description,
        product=_GUEST,
        root=tuple(
            RootDescription(f"{number:04x}:00", 0, flat=[device]) for number, device in enumerate(devices, 1)
        ),
    )


@as_change
def _add_host_bridges(tree: Tree, kind: str) -> None:
    """Show a host bridge at device 0 of every root bus."""
    vendor, device = kind.split(":")
    for root in tree.description.root:
        bdf = f"{root.bus}:00.0"
        path = f"/sys/devices/pci{root.bus}/{bdf}"
        if path in tree.directories:
            continue
        tree.add(f"{path}/uevent", f"PCI_CLASS=60000\nPCI_ID={kind.upper()}\nPCI_SLOT_NAME={bdf}\n")
        tree.add_values(path, {"vendor": f"0x{vendor}", "device": f"0x{device}", "class": "0x060000"})
        tree.link(f"/sys/bus/pci/devices/{bdf}", f"../../../{path.removeprefix('/sys/')}")


def _three_gpus_a_nic(description: NodeDescription) -> NodeDescription:
    first, *others = description.root
    return replace(description, root=(replace(first, switch=["gpu", *first.switch]), *others))


@_on("GPU0")
def _log_corrected(tree: Tree, gpu: str) -> None:
    """Log a corrected error (drivers/pci/pcie/aer.c, aer_print_error)."""
    log(tree, f"pcieport {_above(tree, gpu)}: AER: Correctable error message received from {gpu}")
    log(tree, f"nvidia {gpu}: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Receiver ID)")


# fmt: off
FAULTS = tuple(described(
    "pcie", globals(), register=_set_registers, link=_set_links, slot=partial(_set_links, both=False),
    host_bridge=_add_host_bridges,
))
