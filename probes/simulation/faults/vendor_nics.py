"""Faults of NICs that are not NVIDIA's: modules, peer memory, DMA-BUF, the network plugin of jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from probes.facts.gpudirect_requirements import CXI_GPU_PARAMETER
from probes.facts.kernel.modules import EFA_PEERMEM
from probes.simulation.faults.fault import ChangeDescription, Faults, change_fields, fault
from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import Refusal, Tree, log
from probes.simulation.node.modules.files import remove_module_file
from probes.simulation.node.modules.loading import INVALID, refuse_module, remove_modules, symbol_mismatch

_EFA, _CXI = "aws-p5", "slingshot"
_PROPRIETARY = change_fields(driver={"flavor": "proprietary"}, gpudirect={"dmabuf": False})

FAULTS = Faults()


def _renamed(devices: list[Any], prefix: str) -> list[Any]:
    return [
        _renamed(device, prefix) if isinstance(device, list) else device.replace(" mlx5_", f" {prefix}")
        for device in devices
    ]


def _without_dmabuf(id_: str, prefix: str, module: str) -> ChangeDescription:
    """Return a change to NICs of another vendor, whose driver does not register DMA-BUFs."""

    def change(description: NodeDescription) -> NodeDescription:
        live = (name for name in description.modules.live if not name.startswith("mlx5_"))
        return change_fields(
            root=tuple(
                replace(root, switch=_renamed(root.switch, prefix), ports=_renamed(root.ports, prefix))
                for root in description.root
            ),
            nic={
                kind: replace(nic, id=id_, hca="", firmware="", board="")
                for kind, nic in description.nic.items()
            },
            modules={"live": (*live, module)},
            gpudirect={"dmabuf": False},
        )(description)

    return change


@FAULTS.fault(
    "efa-peermem-unusable",
    "The proprietary NVIDIA driver, which efa_nv_peermem refuses",
    change_description=_PROPRIETARY,
    on=_EFA,
)
def _refuses_proprietary(tree: Tree) -> None:
    messages = ((6, "efa_nv_peermem: Nvidia proprietary is unsupported"),)
    refuse_module(tree, EFA_PEERMEM, Refusal(INVALID.error, messages), 14.2)


@FAULTS.fault(
    "efa-peermem-unusable-refused",
    "efa_nv_peermem was built for another NVIDIA driver, and the kernel refuses it; no DMA-BUF",
    change_description=change_fields(gpudirect={"dmabuf": False}),
    finds=("efa-peermem-unusable",),
    on=_EFA,
)
def _built_for_other_driver(tree: Tree) -> None:
    refuse_module(tree, EFA_PEERMEM, symbol_mismatch(EFA_PEERMEM, "nvidia_p2p_get_pages"), 14.2)


@FAULTS.fault(
    "efa-peermem-unusable-spare",
    "efa_nv_peermem is not installed; DMA-BUF works",
    finds=("efa-peermem-unusable",),
    on=_EFA,
)
def _absent(tree: Tree) -> None:
    remove_modules(tree, EFA_PEERMEM)
    remove_module_file(tree, EFA_PEERMEM)


@FAULTS.fault(
    "efa-peermem-symbol-mismatch",
    "efa_nv_peermem was built for another NVIDIA driver, but loads nevertheless",
    on=_EFA,
)
def _without_version(tree: Tree) -> None:
    log(tree, "efa_nv_peermem: no symbol version for nvidia_p2p_dma_unmap_pages", 14.2)
    log(tree, "EFA NV Peermem v1.2.2", 14.3, 6)


@FAULTS.fault(
    "cxi-without-gpu-support",
    "cxi_ss1 was built without NVIDIA's headers, and the NVIDIA driver is proprietary",
    change_description=_PROPRIETARY,
    on=_CXI,
)
def _without_gpu_support(tree: Tree) -> None:
    tree.remove(CXI_GPU_PARAMETER)
    log(tree, "cxi_ss1: Nvidia GPU P2P not supported", 3010.0, 6)


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
          lambda tree: remove_modules(tree, "efa"), on=_EFA),
    fault("nccl-net-plugin-absent", "The job has no aws-ofi-nccl plugin, and NCCL uses TCP",
          change_description=change_fields(system={"plugin": ""}), on=_EFA),
    fault("cxi-ss1-not-loaded", "The Slingshot driver is not loaded",
          lambda tree: remove_modules(tree, "cxi_user", "cxi_eth", "cxi_ss1"), on=_CXI),
    fault("cxi-user-not-loaded", "cxi_user is not loaded: libfabric finds no NIC",
          lambda tree: remove_modules(tree, "cxi_user"), on=_CXI),
)
