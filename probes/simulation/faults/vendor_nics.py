"""Faults of AWS EFA and HPE Slingshot: modules, peer memory, the network plugin of jobs."""

from __future__ import annotations

from probes.simulation.faults.fault import Faults, change_fields, fault
from probes.simulation.node.devices.vendor_nics import EFA_PEERMEM, GPU_PARAMETER
from probes.simulation.node.model.tree import Refusal, Tree, log
from probes.simulation.node.modules.files import remove_module_file
from probes.simulation.node.modules.loading import INVALID, refuse_module, remove_modules, symbol_mismatch

_EFA, _CXI = "aws-p5", "slingshot"
_PROPRIETARY = change_fields(driver={"flavor": "proprietary"}, gpudirect={"dmabuf": False})

FAULTS = Faults()


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
    tree.remove(GPU_PARAMETER)
    log(tree, "cxi_ss1: Nvidia GPU P2P not supported", 3010.0, 6)


# fmt: off
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
