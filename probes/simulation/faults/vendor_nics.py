"""Faults of NICs that are not NVIDIA's: modules, peer memory, DMA-BUF, the network plugin of jobs."""

from __future__ import annotations

from dataclasses import replace

from probes.facts.gpudirect_requirements import CXI_GPU_PARAMETER, EFA_PEERMEM
from probes.simulation.faults.fault import (
    ChangeDescription,
    Faults,
    change_devices,
    change_fields,
    fault,
    remove_path,
    unloaded,
)
from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import Refusal, log
from probes.simulation.node.modules.files import remove_module_file
from probes.simulation.node.modules.loading import INVALID, refuse_module, symbol_mismatch

_EFA, _CXI = "aws-p5", "slingshot"
_REFUSES_PROPRIETARY = Refusal(INVALID.error, ((6, "efa_nv_peermem: Nvidia proprietary is unsupported"),))
_PROPRIETARY = change_fields(driver={"flavor": "proprietary"}, gpudirect={"dmabuf": False})

FAULTS = Faults()


def _without_dmabuf(id_: str, prefix: str, module: str) -> ChangeDescription:
    """Return a change to NICs of another vendor, whose driver does not register DMA-BUFs."""

    def change(description: NodeDescription) -> NodeDescription:
        live = (name for name in description.modules.live if not name.startswith("mlx5_"))
        return change_fields(
            nic={
                kind: replace(nic, id=id_, hca="", firmware="", board="")
                for kind, nic in description.nic.items()
            },
            modules={"live": (*live, module)},
            gpudirect={"dmabuf": False},
        )(change_devices(lambda device: device.replace(" mlx5_", f" {prefix}"))(description))

    return change


# fmt: off
FAULTS += tuple(
    fault(f"nic-{module.partition('_')[0]}", f"{maker} NICs whose driver does not register DMA-BUFs",
          change_description=_without_dmabuf(id_, prefix, module),
          finds=("dmabuf-nic-driver-lacks-support",), on="pcie-l40s")
    for maker, id_, prefix, module in (
        ("Alibaba", "1ded:107f", "erdma_", "erdma"),
        ("AMD Pensando", "1dd8:1002", "ionic_", "ionic_rdma"),
        ("Broadcom", "14e4:1750", "bnxt_re", "bnxt_re"),
        ("Intel", "8086:1592", "irdma", "irdma"),
    )
)
FAULTS += (
    fault("efa-not-loaded", "The EFA driver is not loaded",
          unloaded("efa"), on=_EFA),
    fault("nccl-net-plugin-absent", "The job has no aws-ofi-nccl plugin, and NCCL uses TCP",
          change_description=change_fields(system={"plugin": ""}), on=_EFA),
    fault("cxi-ss1-not-loaded", "The Slingshot driver is not loaded",
          unloaded("cxi_user", "cxi_eth", "cxi_ss1"), on=_CXI),
    fault("cxi-user-not-loaded", "cxi_user is not loaded: libfabric finds no NIC",
          unloaded("cxi_user"), on=_CXI),
    fault("efa-peermem-unusable", "The proprietary NVIDIA driver, which efa_nv_peermem refuses",
          lambda tree: refuse_module(tree, EFA_PEERMEM, _REFUSES_PROPRIETARY, 14.2),
          change_description=_PROPRIETARY, on=_EFA),
    fault("efa-peermem-unusable-refused",
          "efa_nv_peermem was built for another NVIDIA driver, and the kernel refuses it; no DMA-BUF",
          lambda tree: refuse_module(
              tree, EFA_PEERMEM, symbol_mismatch(EFA_PEERMEM, "nvidia_p2p_get_pages"), 14.2),
          change_description=change_fields(gpudirect={"dmabuf": False}),
          finds=("efa-peermem-unusable",), on=_EFA),
    fault("efa-peermem-unusable-spare", "efa_nv_peermem is not installed; DMA-BUF works",
          unloaded(EFA_PEERMEM), lambda tree: remove_module_file(tree, EFA_PEERMEM),
          finds=("efa-peermem-unusable",), on=_EFA),
    fault("efa-peermem-symbol-mismatch",
          "efa_nv_peermem was built for another NVIDIA driver, but loads nevertheless",
          lambda tree: log(tree, "efa_nv_peermem: no symbol version for nvidia_p2p_dma_unmap_pages", 14.2),
          lambda tree: log(tree, "EFA NV Peermem v1.2.2", 14.3, 6), on=_EFA),
    fault("cxi-without-gpu-support",
          "cxi_ss1 was built without NVIDIA's headers, and the NVIDIA driver is proprietary",
          remove_path(CXI_GPU_PARAMETER),
          lambda tree: log(tree, "cxi_ss1: Nvidia GPU P2P not supported", 3010.0, 6),
          change_description=_PROPRIETARY, on=_CXI),
)
