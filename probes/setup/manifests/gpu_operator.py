"""The GPU Operator's settings for a path: a merge patch of its ClusterPolicy, or values for its Helm chart.

Fields and defaults: NVIDIA/gpu-operator v26.7.0, api/nvidia/v1/clusterpolicy_types.go, controllers/
object_controls.go and deployments/gpu-operator/values.yaml; cloud-native-docs, gpu-operator-rdma.rst.
"""

from __future__ import annotations

import json
import re
from typing import Any

from probes.base.unknown import Unknown
from probes.facts.gpu.generations import TURING, is_before
from probes.facts.gpu.gpus import Flavor, GpuFacts
from probes.facts.gpudirect import GdrPath, parse_driver_version
from probes.facts.gpudirect_requirements import FIRST_DMABUF_DRIVER
from probes.setup.manifests.manifest_text import Key, dump, head, join
from probes.setup.manifests.request import (
    DriverOwner,
    ManifestRequest,
    Refused,
    driver_version,
    gpu_operator,
    has_host_ofed,
)

CHART_VERSION = "v26.7.0"
_FIRST_MODULE_TYPE = "25.3.0"  # kernelModuleType replaced useOpenKernelModules
_FIRST_OPEN_ONLY = (620, 0, 0)  # from here on there are no proprietary kernel modules
_RESTARTS = "driver pods restart and GPU jobs on the nodes are terminated when driver settings change"
_OBJECT_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")  # RFC 1123 subdomain, safe in a command
_Settings = tuple[dict[str, Any], dict[Key, str]]


def cluster_policy(request: ManifestRequest) -> str | Refused:
    """Return a merge patch: the CRD requires nine parts of spec, so a short object is rejected."""
    operator = gpu_operator(request.situation)
    name = operator.name if operator and _OBJECT_NAME.fullmatch(operator.name) else "cluster-policy"
    by_crd = operator is not None and operator.uses_driver_crd is True
    settings, comments = _by_driver_crd(request) if by_crd else _settings(request)
    use = [
        f"kubectl patch clusterpolicy {name} --type merge --dry-run=server --patch-file FILE",
        f"kubectl patch clusterpolicy {name} --type merge --patch-file FILE",
    ]
    notes = [
        *([] if request.driver is DriverOwner.HOST else [_RESTARTS]),
        *(["NVIDIADriver objects manage the driver here: patch them as well (below)"] if by_crd else []),
    ]
    if by_crd:
        use.append(f"kubectl patch nvidiadriver NAME --type merge --patch '{_driver_patch(request)}'")
    top = head(request, "GPU Operator: merge patch of the ClusterPolicy for GPUDirect RDMA", use, notes)
    return join(top, dump({"spec": settings}, {("spec", *key): text for key, text in comments.items()}))


def helm(request: ManifestRequest) -> str | Refused:
    """Return a values file for the chart of the GPU Operator."""
    settings, comments = _settings(request)
    version = driver_version(request.situation)
    numbers = parse_driver_version(version)
    can_stay = request.path is not GdrPath.DMABUF or (numbers is not None and numbers >= FIRST_DMABUF_DRIVER)
    if request.driver is DriverOwner.OPERATOR and version and can_stay:
        settings["driver"]["version"] = version
        comments["driver", "version"] = (
            "The version of this node. Without it, the chart's default replaces the driver."
        )
    use = [
        "helm repo add nvidia https://helm.ngc.nvidia.com/nvidia && helm repo update",
        f"helm upgrade --install gpu-operator nvidia/gpu-operator --version={CHART_VERSION}"
        " --namespace gpu-operator --create-namespace --wait --values FILE",
    ]
    notes = [] if request.driver is DriverOwner.HOST else [_RESTARTS]
    top = head(request, "GPU Operator: values of its Helm chart for GPUDirect RDMA", use, notes)
    return join(top, dump(settings, comments))


def _settings(request: ManifestRequest) -> _Settings:
    """Return the settings that ClusterPolicy.spec and the chart's values have in common, and why each."""
    by_host = request.driver is DriverOwner.HOST
    driver, why = _host_driver(request) if by_host else _operator_driver(request)
    settings: dict[str, Any] = {"driver": driver, "gdrcopy": {"enabled": not by_host}}
    comments: dict[Key, str] = {("driver", *key): text for key, text in why.items()}
    comments["gdrcopy",] = (
        "The gdrcopy container is part of the driver pod, which does not run here: install gdrdrv-dkms "
        "(RPM: gdrcopy-kmod) on the host."
        if by_host
        else "Small copies between CPU and GPU memory with gdrdrv. NICs do not use it."
    )
    settings["devicePlugin"] = {"enabled": True}
    comments["devicePlugin",] = "Offers the GPUs to pods as nvidia.com/gpu."
    settings["dcgmExporter"] = {"enabled": True}
    comments["dcgmExporter",] = (
        "GPU, NVLink and PCIe metrics. The exporter runs DCGM itself; dcgm.enabled adds a separate host "
        "engine for other tools."
    )
    return settings, comments


def _host_driver(request: ManifestRequest) -> _Settings:
    loads = (
        "the host also loads nvidia-peermem: gdrtop manifest modules-load. driver.rdma has no effect."
        if request.path is GdrPath.PEERMEM
        else "driver.rdma and driver.kernelModuleType have no effect."
    )
    why = f"The host has its own driver, so the operator must not install another one; {loads}"
    return {"enabled": False}, {("enabled",): why}


def _operator_driver(request: ManifestRequest) -> _Settings:
    driver: dict[str, Any] = {}
    comments: dict[Key, str] = {}
    if isinstance(request.driver, Unknown):
        comments["rdma",] = f"driver.enabled is left unchanged: {request.driver.detail or request.driver}."
    else:
        driver["enabled"] = True
        comments["enabled",] = "The operator installs the driver in a container on every node."
    kind, why = _module_type(request)
    if kind:
        driver["kernelModuleType"] = kind
        comments["kernelModuleType",] = why
    driver["rdma"], rdma_why = _rdma(request)
    comments.update({("rdma", *key): text for key, text in rdma_why.items()})
    return driver, comments


def _module_type(request: ManifestRequest) -> tuple[str, str]:
    """Return open or proprietary kernel modules and why; "" where the current ones can stay."""
    gpus = request.situation.examination.node.gpus
    needs = f"Needs GPU Operator {_FIRST_MODULE_TYPE} or newer, which ignores useOpenKernelModules."
    if request.path is GdrPath.DMABUF:
        return "open", f"DMA-BUF needs the open kernel modules. {needs}"
    found = gpus.gpus if isinstance(gpus, GpuFacts) else ()
    if any(is_before(gpu.compute_capability, TURING) for gpu in found):
        return "proprietary", f"The open kernel modules do not support these GPUs. {needs}"
    numbers = parse_driver_version(driver_version(request.situation))
    flavor = gpus.driver.flavor if isinstance(gpus, GpuFacts) else gpus
    if numbers is not None and numbers >= _FIRST_OPEN_ONLY:
        return "open", f"Driver 620 and newer have no other kernel modules. {needs}"
    if isinstance(flavor, Unknown):
        return "", ""
    kind = "open" if flavor is Flavor.OPEN else "proprietary"
    return kind, f"As on this node: {request.path.value} works with both kinds. {needs}"


def _rdma(request: ManifestRequest) -> _Settings:
    host_ofed = has_host_ofed(request.situation)
    values = {"enabled": request.path is GdrPath.PEERMEM, "useHostMofed": host_ofed}
    if request.path is GdrPath.PEERMEM:
        source = (
            "OFED is installed on the host. If false, the driver pod would wait for the MOFED container "
            "forever."
            if host_ofed
            else "The MOFED container provides OFED: apply gdrtop manifest nicclusterpolicy first. If true, "
            "the driver pod would look for OFED on the host."
        )
        enabled = "Adds the container nvidia-peermem-ctr, which loads nvidia-peermem."
        return values, {("enabled",): enabled, ("useHostMofed",): source}
    enabled = (
        f"{request.path.value} does not use nvidia-peermem. If true, a container waits for OFED before"
        " loading it."
    )
    documented = (
        "Documented as true for NIC drivers on the host; without rdma.enabled, it has no effect."
        if host_ofed
        else "Without rdma.enabled, it has no effect."
    )
    return values, {("enabled",): enabled, ("useHostMofed",): documented}


def _by_driver_crd(request: ManifestRequest) -> _Settings:
    """Return the settings without the driver's: NVIDIADriver objects have those, and gdrcopy with them."""
    settings, comments = _settings(request)
    for name in ("driver", "gdrcopy"):
        del settings[name]
    return settings, {key: text for key, text in comments.items() if key[0] in settings}


def _driver_patch(request: ManifestRequest) -> str:
    """Return the patch of an NVIDIADriver as one line of JSON; all words in it are gdrtop's own."""
    driver, _ = _operator_driver(request)
    kind = {"kernelModuleType": driver["kernelModuleType"]} if "kernelModuleType" in driver else {}
    return json.dumps({"spec": {**kind, "rdma": driver["rdma"], "gdrcopy": {"enabled": True}}})
