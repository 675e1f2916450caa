"""Faults of the PCIe bus between GPUs and NICs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from probes.facts.pci.functions import DEVICES
from probes.simulation.faults.fault import (
    ChangeDescription,
    ChangeTree,
    Faults,
    add_file,
    append_to_cmdline,
    change_devices,
    change_fields,
    fault,
)
from probes.simulation.node.devices import pci as config
from probes.simulation.node.model.description import NodeDescription, RootDescription
from probes.simulation.node.model.tree import Content, Tree, log

_GUEST = ("QEMU", "Standard PC (Q35 + ICH9, 2009)")

FAULTS = Faults()


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


def _on(device: str, change: Callable[[Tree, str], object]) -> ChangeTree:
    """Return a change of a function, which is called with its BDF unless another fault has removed it."""

    def change_tree(tree: Tree) -> None:
        bdf = _function(tree, device)
        if bdf is not None:
            change(tree, bdf)

    return change_tree


def _set_register(device: str, offset: int, value: int, mask: int) -> ChangeTree:
    """Change bits in the configuration space of a function."""
    return _on(device, lambda tree, bdf: config.set_bits(tree, bdf, offset, value, mask))


def _set_file(device: str, name: str, content: Content) -> ChangeTree:
    return _on(device, lambda tree, bdf: tree.add(f"{config.real_path(tree, bdf)}/{name}", content))


def _set_link(device: str, both: bool = True, **files: str) -> ChangeTree:
    """Change the link files of a function and of the port above it, or of the port alone."""

    def change(tree: Tree, bdf: str) -> None:
        for end in (bdf, _above(tree, bdf)):
            path = config.real_path(tree, end)
            for name, value in files.items():
                if both or end != bdf or name.startswith("current"):
                    tree.add(f"{path}/{name}", f"{value}\n")

    return _on(device, change)


def _without_extended_space(tree: Tree, nic: str) -> None:
    for bdf in (nic, _above(tree, nic)):
        path = f"{config.real_path(tree, bdf)}/config"
        content = tree.files[path]
        if isinstance(content, bytes):
            tree.add(path, content[:256])


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


@FAULTS.fault("vm-without-p2p-ats", "ATS is off on the NICs of a virtual machine", on="cloud-vm")
def _ats_off(tree: Tree) -> None:
    for nic in tree.nics:
        config.set_bits(tree, nic.bdf, config.ATS_CONTROL, 0, 0x8000)


@FAULTS.fault("acs-direct-nic", "A root port's ACS is not set as ConnectX requires", on="gb300")
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


def _without_nics(*names: str) -> ChangeDescription:
    """Remove NICs, and buses on which nothing is left."""
    keep = change_devices(lambda device: None if device.partition(" ")[2] in names else device)

    def describe(description: NodeDescription) -> NodeDescription:
        roots = keep(description).root
        return replace(description, root=tuple(root for root in roots if root.switch or root.ports))

    return describe


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


def _desktop_host_bridges(tree: Tree) -> None:
    """Show the host bridge of Raptor Lake (8086:a700, pci.ids) at device 0 of every root bus."""
    for root in tree.description.root:
        bdf = f"{root.bus}:00.0"
        path = f"/sys/devices/pci{root.bus}/{bdf}"
        if path in tree.directories:
            continue
        tree.add(f"{path}/uevent", f"PCI_CLASS=60000\nPCI_ID=8086:A700\nPCI_SLOT_NAME={bdf}\n")
        tree.add_values(path, {"vendor": "0x8086", "device": "0xa700", "class": "0x060000"})
        tree.link(f"/sys/bus/pci/devices/{bdf}", f"../../../{path.removeprefix('/sys/')}")


def _three_gpus_a_nic(description: NodeDescription) -> NodeDescription:
    first, *others = description.root
    return replace(description, root=(replace(first, switch=["gpu", *first.switch]), *others))


def _log_corrected(tree: Tree, gpu: str) -> None:
    """Log a corrected error (drivers/pci/pcie/aer.c, aer_print_error)."""
    log(tree, f"pcieport {_above(tree, gpu)}: AER: Correctable error message received from {gpu}")
    log(tree, f"nvidia {gpu}: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Receiver ID)")


# fmt: off
FAULTS += (
    fault("nic-ats-on-bare-metal", "ATS is on for a NIC (mlx5_0) of a bare-metal node",
          _set_register("mlx5_0", config.ATS_CONTROL, 0x8000, 0x8000)),
    fault("acs-option-ignored", "pci=noacs is on the kernel command line and has no effect",
          change_description=append_to_cmdline("pci=noacs")),
    fault("iommu-translated", "The IOMMU translates DMA addresses (intel_iommu=on without iommu=pt)",
          change_description=_translated),
    fault("vm-without-p2p", "A virtual machine that shows no PCIe switches",
          change_description=_as_guest, on="pcie-l40s"),
    fault("gpu-nic-cross-socket", "The GPUs of one socket have no NIC on that socket",
          change_description=_without_nics("mlx5_8", "mlx5_9", "mlx5_5"), on="dgx-a100"),
    fault("gpu-nic-through-cpu", "Some GPUs have a NIC only behind the CPU's host bridge",
          change_description=_without_nics("mlx5_8", "mlx5_9"), on="dgx-a100"),
    fault("gpu-nic-shared", "Three GPUs share one NIC", change_description=_three_gpus_a_nic, on="pcie-l40s"),
    fault("bar1-too-small", "The GPUs' BAR1 is 32 GiB",
          change_description=change_fields(gpu={"bar1_gib": 32})),
    fault("pcie-link-degraded-width", "The PCIe link of a NIC (mlx5_2) runs at x8",
          _set_link("mlx5_2", current_link_width="8"), finds=("pcie-link-degraded-width", "rank-differs")),
    fault("pcie-link-degraded-speed", "The PCIe link of a NIC (mlx5_3) runs at 16 GT/s",
          _set_link("mlx5_3", current_link_speed="16.0 GT/s PCIe")),
    fault("pcie-link-degraded-gpu-speed", "The PCIe link of GPU4 stays at 2.5 GT/s",
          _set_link("GPU4", current_link_speed="2.5 GT/s PCIe")),
    fault("pcie-link-limited-by-slot", "The slot of GPU6 is limited to 16 GT/s",
          _set_link("GPU6", both=False,
                    current_link_speed="16.0 GT/s PCIe", max_link_speed="16.0 GT/s PCIe")),
    fault("pcie-link-below-port-rate", "A NIC (mlx5_8) is in an x8 slot too slow for its port rate",
          _set_link("mlx5_8", both=False, current_link_width="8", max_link_width="8")),
    fault("pcie-devctl-relaxed-ordering", "Relaxed ordering is off on a NIC (mlx5_1)",
          _set_register("mlx5_1", config.DEVICE_CONTROL, 0, 0x10)),
    fault("pcie-devctl-read-request", "MaxReadReq of a NIC (mlx5_0) is 512 bytes",
          _set_register("mlx5_0", config.DEVICE_CONTROL, 0x2000, 0x7000)),
    fault("pcie-devctl-read-request-differs", "MaxReadReq of a NIC (mlx5_3) differs from the others",
          _set_register("mlx5_3", config.DEVICE_CONTROL, 0x3000, 0x7000)),
    fault("pcie-devctl-ten-bit-tags-differ", "10-bit tags are off on one NIC (mlx5_6)",
          _set_register("mlx5_6", config.DEVICE_CONTROL_2, 0, 0x1000)),
    fault("pcie-devctl-payload-differs", "MaxPayload of GPU1 differs from that of its NICs",
          _set_register("GPU1", config.DEVICE_CONTROL, 0, 0xE0)),
    fault("pcie-aspm-on", "Power saving (ASPM) is on for a NIC (mlx5_7)",
          _set_register("mlx5_7", config.LINK_CONTROL, 2, 3)),
    fault("pcie-aer-uncorrectable", "A NIC (mlx5_0) had uncorrectable PCIe errors",
          _set_file("mlx5_0", "aer_dev_fatal", config.counts("fatal", MalfTLP=2))),
    fault("pcie-error-unreported", "GPU7 recorded a fatal PCIe error that the kernel did not count",
          _set_register("GPU7", config.DEVICE_STATUS, 4, 4)),
    fault("acs-direct-translated-without-ats",
          "A switch port relies on ATS, which is off on its NIC (mlx5_2)",
          _on("mlx5_2", lambda tree, nic: config.set_bits(
              tree, _above(tree, nic), config.ACS_CONTROL, 0x5D, 0x5D))),
    fault("vm-pair-unproven", "A virtual machine whose hypervisor shows GPUs and NICs below one switch",
          _ats_off, change_description=change_fields(product=_GUEST)),
    fault("peer-mmio-not-remapped",
          "The IOMMU translates, and NVreg_DmaRemapPeerMmio=0 leaves GPU memory out of its tables",
          add_file("/etc/modprobe.d/nvidia-options.conf", "options nvidia NVreg_DmaRemapPeerMmio=0\n"),
          add_file("/proc/driver/nvidia/params", 'RegistryDwords: ""\nDmaRemapPeerMmio: 0\n'),
          change_description=_translated),
    fault("numa-node-unknown", "The firmware does not report the NUMA node of a NIC (mlx5_4)",
          _set_file("mlx5_4", "numa_node", "-1\n")),
    fault("pcie-aer-correctable", "GPU0 had corrected PCIe errors",
          _set_file("GPU0", "aer_dev_correctable", config.counts("correctable", BadTLP=1294)),
          _on("GPU0", _log_corrected)),
    fault("iommu-fault", "The IOMMU refused DMA from a NIC (mlx5_1)", _on("mlx5_1", _log_refused_dma)),
    fault("pcie-config-unreachable",
          "The extended PCI configuration space of a NIC (mlx5_9) is not readable",
          _on("mlx5_9", _without_extended_space)),
    fault("pcie-devctl-extended-tags", "Extended tags are off on a NIC (mlx5_5)",
          _set_register("mlx5_5", config.DEVICE_CONTROL, 0, 0x100),
          _set_register("mlx5_5", config.DEVICE_CONTROL_2, 0, 0x1000)),
    fault("pcie-function-gone", "A NIC (mlx5_4) does not respond on the PCIe bus",
          _set_file("mlx5_4", "config", b"\xff" * 4096)),
    fault("acs-on", "ACS redirects traffic between GPUs and NICs through the CPU",
          _acs_on, finds=("acs-redirect-enabled",)),
    fault("p2p-host-bridge-unlisted",
          "Some GPUs reach their NIC only through the host bridge of a desktop CPU",
          _desktop_host_bridges, change_description=_without_nics("mlx5_8", "mlx5_9"), on="dgx-a100"),
)
