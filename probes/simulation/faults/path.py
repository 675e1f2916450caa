"""Faults of the path from NIC to GPU memory."""

from __future__ import annotations

from dataclasses import replace

from probes.facts.kernel.modules import PEERMEM
from probes.facts.pci.nic_families import CONNECTX
from probes.queries.modules import DRIVER_VERSION
from probes.simulation.faults.fault import (
    Faults,
    add_file,
    add_link,
    as_change,
    change_devices,
    change_fields,
    fault,
    remove_path,
    unloaded,
)
from probes.simulation.faults.peermem import GONE, ofed, peermem_parameter
from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import Tree, log

FAULTS = Faults()


def _without_either(description: NodeDescription) -> NodeDescription:
    live = tuple(name for name in description.modules.live if name != PEERMEM)
    on_disk = (*description.modules.on_disk, PEERMEM)
    return change_fields(
        driver={"flavor": "proprietary"}, modules={"live": live, "on_disk": on_disk}, gpudirect={"regions": 0}
    )(description)


_NCCL = "/usr/lib/x86_64-linux-gnu/libnccl.so.2"
_PROPRIETARY = change_fields(driver={"flavor": "proprietary"})
_WITHOUT_DMABUF = change_fields(gpudirect={"dmabuf": False})
_DRIVER_510 = change_fields(driver={"version": "510.108.03", "cuda": "11.6"})
_VOLTA = change_fields(gpu={"name": "Tesla V100-SXM2-32GB", "id": "10de:1db5", "capability": (7, 0)})
_KERNEL_OF_RHEL_8 = change_fields(gpudirect={"dmabuf": False}, kernel="4.18.0-553.16.1.el8_10.x86_64")


def _driver_580(description: NodeDescription) -> NodeDescription:
    """Return the node with a driver that checks the PCI topology: its own one, or 580."""
    if description.driver.numbers >= (580, 65, 6):
        return description
    return change_fields(driver={"version": "580.95.05", "cuda": "13.0"})(description)


def _connectx_3(description: NodeDescription) -> NodeDescription:
    """Replace the NICs by ConnectX-3 with their last OFED: only nvidia_peermem works."""
    modules = description.modules
    return change_fields(
        nic={
            kind: replace(nic, id="15b3:1003", hca="MT4099", firmware="2.42.5000", board="MT_1090120019")
            for kind, nic in description.nic.items()
        },
        gpudirect={"dmabuf": False},
        modules={
            "live": tuple(name.replace("mlx5_", "mlx4_") for name in modules.live),
            "on_disk": (*modules.on_disk, *CONNECTX.modules),
        },
    )(change_devices(lambda device: device.replace(" mlx5_", " mlx4_"))(description))


_LAST_OFED = (ofed("MLNX_OFED_LINUX-4.9-7.1.0.0"), peermem_parameter("peerdirect_support", "1"))


@as_change
def _refused(tree: Tree, text: str) -> None:
    log(tree, f"NVRM: dma-buf attach failed: {text}", 612.4, 3)


def _dma_unbound(tree: Tree) -> None:
    for path in tree.dma_functions.values():
        tree.add(f"{path}/uevent", tree.text(f"{path}/uevent").replace("DRIVER=mlx5_ib\n", ""))


def _unless_dma(device: str) -> str | None:
    """Leave out the DMA functions, as a hypervisor or firmware may."""
    return None if device.startswith("dma ") else device


# fmt: off
FAULTS += (
    fault("no-gdr-path", "No GPUDirect RDMA: proprietary driver without nvidia_peermem",
          change_description=_without_either),
    fault("dmabuf-needs-open-module", "Proprietary NVIDIA kernel modules: no DMA-BUF",
          change_description=_PROPRIETARY),
    fault("dmabuf-gpu-too-old", "V100 GPUs, too old for DMA-BUF", change_description=_VOLTA, on="dgx-a100"),
    fault("dmabuf-driver-too-old", "NVIDIA driver 510, too old for DMA-BUF",
          change_description=_DRIVER_510, on="dgx-a100"),
    fault("dmabuf-kernel-too-old", "RHEL 8's kernel without OFED, too old for DMA-BUF",
          change_description=_KERNEL_OF_RHEL_8, on="pcie-l40s"),
    fault("dmabuf-kernel-config", "A kernel built without DMA-BUF",
          lambda tree: tree.add(f"/boot/config-{tree.description.kernel}", "CONFIG_MODULES=y\n# end\n"),
          change_description=_WITHOUT_DMABUF, on="pcie-l40s"),
    fault("dmabuf-nic-driver-lacks-support", "One NIC (mlx5_6) refuses DMA-BUF",
          change_description=change_fields(gpudirect={"refusing": ("mlx5_6",)})),
    fault("nic-connectx-3", "ConnectX-3 NICs with the last OFED that supports them",
          *_LAST_OFED, change_description=_connectx_3,
          finds=("dmabuf-nic-driver-lacks-support",), on="dgx-a100"),
    fault("p2p-topology-refused", "The driver denies a NIC access to GPU memory because of the chipset",
          _refused("PCI topology not supported for dma-buf"), change_description=_driver_580, on="pcie-l40s"),
    fault("p2p-topology-refused-force-pcie", "The driver refuses the direct PCIe path between GPU and NIC",
          _refused("topology not supported for mapping type FORCE_PCIE"), on="gb200"),
    fault("p2p-topology-refused-old-importer", "The NIC driver is too old for peer-to-peer DMA-BUF",
          _refused("importer unable to handle MMIO without struct page"),
          change_description=_driver_580, on="bare-roce"),
    fault("data-direct-old-rdma-core", "rdma-core 50, whose libmlx5 cannot use Data Direct",
          change_description=change_fields(rdma_core=50), finds=("data-direct-unavailable",), on="gb300"),
    fault("data-direct-hidden", "The NICs' DMA functions (Data Direct) are not on the PCI bus",
          change_description=change_devices(_unless_dma), finds=("data-direct-unavailable",), on="gb300"),
    fault("dmabuf-kernel-without-odp",
          "The kernel was built without on-demand paging, so no NIC supports DMA-BUF",
          lambda tree: tree.add(f"/boot/config-{tree.description.kernel}",
                                "CONFIG_DMA_SHARED_BUFFER=y\nCONFIG_INFINIBAND_USER_MEM=y\n# end\n"),
          change_description=_WITHOUT_DMABUF, finds=("dmabuf-nic-driver-lacks-support",), on="pcie-l40s"),
    fault("mlx4-ib-not-loaded", "ConnectX-3 NICs without mlx4_ib",
          *_LAST_OFED, unloaded("mlx4_ib"), change_description=_connectx_3, on="dgx-a100"),
    fault("mlx4-core-not-loaded", "ConnectX-3 NICs without mlx4_core and mlx4_ib",
          *_LAST_OFED, unloaded("mlx4_ib", "mlx4_core"), change_description=_connectx_3,
          on="dgx-a100"),
    fault("p2p-topology-refused-override",
          "The driver option GrdmaPciTopoCheckOverride=2 denies GPU memory to NICs",
          add_file("/etc/modprobe.d/nvidia-options.conf",
                   "options nvidia NVreg_GrdmaPciTopoCheckOverride=2\n"),
          add_file("/proc/driver/nvidia/params", 'RegistryDwords: ""\nGrdmaPciTopoCheckOverride: 2\n'),
          change_description=_driver_580, on="pcie-l40s"),
    fault("path-contradicts-node", "The driver's version file says proprietary, and jobs use DMA-BUF",
          lambda tree: tree.add(DRIVER_VERSION, tree.text(DRIVER_VERSION).replace(
              "Open Kernel Module for x86_64", "x86_64 Kernel Module")),
          finds=("path-contradicts-node", "dmabuf-needs-open-module"), on="bare-roce"),
    fault("memory-peers-missing-old-nccl", "NCCL 2.21, which cannot see nvidia_peermem on this kernel",
          remove_path(_NCCL), add_file(f"{_NCCL}.21.5", ""), add_link(_NCCL, "libnccl.so.2.21.5"),
          change_description=_PROPRIETARY, excludes=GONE),
    fault("data-direct-unavailable",
          "The kernel's mlx5_ib does not recognize the NICs' DMA functions (Data Direct)",
          _dma_unbound, on="gb300"),
)
