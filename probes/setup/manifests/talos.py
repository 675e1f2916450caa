"""Talos: the modules and the sysctl of its machine configuration, in the form of either version.

siderolabs/talos: until 1.13 machine.kernel.modules and machine.sysctls; from 1.14 on the documents
KernelModuleConfig and SysctlConfig, whose schema rejects machine.kernel. Modules and sysctl: Talos's guide
for NVIDIA GPUs (open source modules); siderolabs/extensions, nvidia-gpu.
"""

from __future__ import annotations

from typing import Any

from probes.facts.gpudirect import GdrPath
from probes.facts.pci.functions import PciFacts, PciKind
from probes.queries.modules import mlx5_functions
from probes.setup.manifests.commented_yaml import Key, dump, join
from probes.setup.manifests.head import head
from probes.setup.manifests.request import ManifestRequest, Refused, has_nvlink5

_FIRST_DOCUMENTS = (1, 14)
_SYSCTL = ("net.core.bpf_jit_harden", "1")
_WHY_SYSCTL = "From Talos's guide for NVIDIA GPUs."
_WHY = {
    "nvidia": "The GPU driver. The extension keeps udev from loading it, so every module is listed.",
    "mlx5_core": "The NICs: Talos uses the kernel's own driver, which is enough for DMA-BUF.",
    "ib_uverbs": "Programs register memory with NICs through it.",
    "ib_umad": "NVLink 5: the manager of the switches sends its packets through it.",
}


def talos(request: ManifestRequest) -> str | Refused:
    """Return a patch of the machine configuration; DMA-BUF only."""
    if request.path is not GdrPath.DMABUF:
        return Refused(
            "Talos has no OFED, which nvidia-peermem needs, so only DMA-BUF works; use --path dmabuf"
        )
    if request.talos_version is None:
        return Refused("the format depends on the Talos version; state it with --talos-version, such as 1.14")
    modules = _modules(request)
    newer = request.talos_version >= _FIRST_DOCUMENTS
    major, minor = request.talos_version
    notes = [
        f"for Talos {major}.{minor}; {'1.13 and older' if newer else '1.14 and newer'} needs another format",
        f"the image needs these extensions: {', '.join(_extensions(request))}",
        "gdrcopy is optional: extension nvidia-gdrdrv-device, and gdrdrv as one more module",
    ]
    use = ["talosctl --nodes NODE patch machineconfig --patch @FILE"]
    lines = head(request, "Talos: machine configuration patch for GPUDirect RDMA via DMA-BUF", use, notes)
    return join(lines, *(_documents(modules) if newer else (_machine(modules),)))


def _modules(request: ManifestRequest) -> list[str]:
    modules = ["nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_modeset"]
    if mlx5_functions(request.situation.examination) != ():
        modules += ["mlx5_core", "mlx5_ib"]
    modules.append("ib_uverbs")
    return [*modules, "ib_umad"] if has_nvlink5(request.situation) else modules


def _extensions(request: ManifestRequest) -> list[str]:
    names = ["nvidia-open-gpu-kernel-modules-production", "nvidia-container-toolkit-production"]
    pci = request.situation.examination.node.pci
    functions = pci.functions.values() if isinstance(pci, PciFacts) else ()
    if has_nvlink5(request.situation) or any(f.kind is PciKind.NVSWITCH for f in functions):
        names.append("nvidia-fabricmanager-production")
    return names


def _machine(modules: list[str]) -> str:
    key, value = _SYSCTL
    machine: dict[str, Any] = {
        "machine": {
            "kernel": {"modules": [{"name": name} for name in modules]},
            "sysctls": {key: value},
        }
    }
    comments: dict[Key, str] = {
        ("machine", "kernel", "modules", index): _WHY[name]
        for index, name in enumerate(modules)
        if name in _WHY
    }
    return dump(machine, {**comments, ("machine", "sysctls"): _WHY_SYSCTL})


def _documents(modules: list[str]) -> list[str]:
    documents = []
    for name in modules:
        document = {"apiVersion": "v1alpha1", "kind": "KernelModuleConfig", "name": name}
        documents.append(dump(document, {("apiVersion",): _WHY[name]} if name in _WHY else {}))
    key, value = _SYSCTL
    sysctl = {"apiVersion": "v1alpha1", "kind": "SysctlConfig", "params": {key: value}}
    return [*documents, dump(sysctl, {("apiVersion",): _WHY_SYSCTL})]
