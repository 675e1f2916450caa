"""The GPU Operator's settings for a path: a merge patch of its ClusterPolicy, or values for its Helm chart.

Fields and defaults: NVIDIA/gpu-operator v26.7.0, api/nvidia/v1/clusterpolicy_types.go, controllers/
object_controls.go and deployments/gpu-operator/values.yaml; cloud-native-docs, gpu-operator-rdma.rst.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from probes.base.unknown import Unknown, known, map_known
from probes.facts.gpu.generations import TURING, is_before
from probes.facts.gpu.gpus import Flavor, GpuFacts
from probes.facts.gpudirect import GdrPath, parse_driver_version
from probes.facts.gpudirect_probe import FIRST_DMABUF_DRIVER, FIRST_OPEN_ONLY
from probes.facts.pci.functions import PciFunction
from probes.facts.pci.nic_families import CONNECTX, OTHER_VERBS_MODULES, VERBS_MODULES
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.facts.rdma.nic_driver import NicStack
from probes.queries.pcie_paths import functions_of
from probes.setup.manifests.manifest_text import (
    Commented,
    DriverOwner,
    ManifestRequest,
    Refused,
    compute_nics,
    driver_version,
    dump,
    gpu_operator,
    has_host_ofed,
    head,
    join,
    nic_stack,
)

CHART_VERSION = "v26.7.0"
_FIRST_MODULE_TYPE = "25.3.0"  # kernelModuleType replaced useOpenKernelModules
_RESTARTS = "driver pods restart and GPU jobs on the nodes are terminated when driver settings change"
_OBJECT_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")  # RFC 1123 subdomain, safe in a command


def cluster_policy(request: ManifestRequest) -> str | Refused:
    """Return a merge patch: the CRD requires nine parts of spec, so a short object is rejected."""
    operator = gpu_operator(request.situation)
    name = "" if isinstance(operator, Unknown) else operator.name
    name = name if _OBJECT_NAME.fullmatch(name) else "cluster-policy"
    settings = _settings(request)
    use = [
        f"kubectl patch clusterpolicy {name} --type merge --dry-run=server --patch-file FILE",
        f"kubectl patch clusterpolicy {name} --type merge --patch-file FILE",
    ]
    notes = [] if request.driver is DriverOwner.HOST else [_RESTARTS]
    if not isinstance(operator, Unknown) and operator.uses_driver_crd is True:
        # NVIDIADriver objects have the driver's settings, and gdrcopy with them.
        notes.append("NVIDIADriver objects manage the driver here: patch them as well (below)")
        del settings["driver"], settings["gdrcopy"]
        own = _operator_driver(request)
        kind = {"kernelModuleType": own["kernelModuleType"]} if "kernelModuleType" in own else {}
        spec = {**kind, "rdma": own["rdma"], "gdrcopy": {"enabled": True}}
        patch = json.dumps({"spec": spec}, default=lambda commented: commented.value)
        use.append(f"kubectl patch nvidiadriver NAME --type merge --patch '{patch}'")
    top = head(request, "GPU Operator: merge patch of the ClusterPolicy for GPUDirect RDMA", use, notes)
    return join(top, dump({"spec": settings}))


def helm(request: ManifestRequest) -> str | Refused:
    """Return a values file for the chart of the GPU Operator."""
    settings = _settings(request)
    version = driver_version(request.situation)
    numbers = parse_driver_version(version)
    can_stay = request.path is not GdrPath.DMABUF or (numbers is not None and numbers >= FIRST_DMABUF_DRIVER)
    if request.driver is DriverOwner.OPERATOR and version and can_stay:
        why = "The version of this node. Without it, the chart's default replaces the driver."
        settings["driver"]["version"] = Commented(version, why)
    use = [
        "helm repo add nvidia https://helm.ngc.nvidia.com/nvidia && helm repo update",
        f"helm upgrade --install gpu-operator nvidia/gpu-operator --version={CHART_VERSION}"
        " --namespace gpu-operator --create-namespace --wait --values FILE",
    ]
    notes = [] if request.driver is DriverOwner.HOST else [_RESTARTS]
    top = head(request, "GPU Operator: values of its Helm chart for GPUDirect RDMA", use, notes)
    return join(top, dump(settings))


def _settings(request: ManifestRequest) -> dict[str, Any]:
    """Return the settings that ClusterPolicy.spec and the chart's values have in common."""
    by_host = request.driver is DriverOwner.HOST
    gdrcopy = "Small copies between CPU and GPU memory with gdrdrv. NICs do not use it."
    if by_host:
        gdrcopy = (
            "The gdrcopy container is part of the driver pod, which does not run here: install gdrdrv-dkms "
            "(RPM: gdrcopy-kmod) on the host."
        )
    metrics = (
        "GPU, NVLink and PCIe metrics. The exporter runs DCGM itself; dcgm.enabled adds a separate host "
        "engine for other tools."
    )
    return {
        "driver": _host_driver(request) if by_host else _operator_driver(request),
        "gdrcopy": Commented({"enabled": not by_host}, gdrcopy),
        "devicePlugin": Commented({"enabled": True}, "Offers the GPUs to pods as nvidia.com/gpu."),
        "dcgmExporter": Commented({"enabled": True}, metrics),
    }


def _host_driver(request: ManifestRequest) -> dict[str, Any]:
    loads = (
        "the host also loads nvidia-peermem: gdrtop manifest modules-load. driver.rdma has no effect."
        if request.path is GdrPath.PEERMEM
        else "driver.rdma and driver.kernelModuleType have no effect."
    )
    why = f"The host has its own driver, so the operator must not install another one; {loads}"
    return {"enabled": Commented(False, why)}


def _operator_driver(request: ManifestRequest) -> dict[str, Any]:
    rdma, owner = _rdma(request), request.driver
    kind = _module_type(request)
    types = {} if kind is None else {"kernelModuleType": kind}
    if isinstance(owner, Unknown):
        why = f"driver.enabled is left unchanged: {owner.detail or owner}."
        return {**types, "rdma": Commented(rdma, why)}
    why = "The operator installs the driver in a container on every node."
    return {"enabled": Commented(True, why), **types, "rdma": rdma}


def _module_type(request: ManifestRequest) -> Commented | None:
    """Return open or proprietary kernel modules and why; None where the current ones can stay."""
    gpus = request.situation.examination.node.gpus
    needs = f"Needs GPU Operator {_FIRST_MODULE_TYPE} or newer, which ignores useOpenKernelModules."
    if request.path is GdrPath.DMABUF:
        return Commented("open", f"DMA-BUF needs the open kernel modules. {needs}")
    found = gpus.gpus if isinstance(gpus, GpuFacts) else ()
    if any(is_before(gpu.compute_capability, TURING) for gpu in found):
        return Commented("proprietary", f"The open kernel modules do not support these GPUs. {needs}")
    numbers = parse_driver_version(driver_version(request.situation))
    flavor = gpus.driver.flavor if isinstance(gpus, GpuFacts) else gpus
    if numbers is not None and numbers >= FIRST_OPEN_ONLY:
        return Commented("open", f"Driver 620 and newer have no other kernel modules. {needs}")
    if isinstance(flavor, Unknown):
        return None
    kind = "open" if flavor is Flavor.OPEN else "proprietary"
    return Commented(kind, f"As on this node: {request.path.value} works with both kinds. {needs}")


def _rdma(request: ManifestRequest) -> dict[str, Any]:
    host_ofed = has_host_ofed(request.situation)
    if request.path is GdrPath.PEERMEM:
        enabled = "Adds the container nvidia-peermem-ctr, which loads nvidia-peermem."
        source = (
            "OFED is installed on the host. If false, the driver pod would wait for the MOFED container "
            "forever."
            if host_ofed
            else "The MOFED container provides OFED: apply gdrtop manifest nicclusterpolicy first. If true, "
            "the driver pod would look for OFED on the host."
        )
    else:
        waits = "If true, a container waits for OFED before loading it."
        enabled = f"{request.path.value} does not use nvidia-peermem. {waits}"
        source = (
            "Documented as true for NIC drivers on the host; without rdma.enabled, it has no effect."
            if host_ofed
            else "Without rdma.enabled, it has no effect."
        )
    return {
        "enabled": Commented(request.path is GdrPath.PEERMEM, enabled),
        "useHostMofed": Commented(host_ofed, source),
    }


# The Network Operator's NicClusterPolicy: OFED where nvidia-peermem needs it, and NICs for pods.
#
# Fields: Mellanox/network-operator v26.7.0, api/v1alpha1/nicclusterpolicy_types.go,
# docs/mofed-container-env-vars.md and its list of container images; selectors: the README of
# Mellanox/k8s-rdma-shared-dev-plugin;
# modules that the driver's container refuses to replace: Mellanox/doca-driver-build, entrypoint.

REPOSITORY = "nvcr.io/nvidia/mellanox"
OFED_VERSION = "doca3.5.0-26.07-0.7.7.0-1"
PLUGIN_VERSION = "network-operator-v26.7.0"
_PODS = 63  # of one node that may share the NICs, as in NVIDIA's examples
_IMAGE_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,80}")
# The kernel allows more, but the plugin's config must match the name as it is written there.
_NETDEV = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}")
# Drivers of RDMA devices whose modules use the IB core, so that the container cannot replace it.
_OTHER_RDMA = (*(module for module in VERBS_MODULES if not module.startswith("mlx")), *OTHER_VERBS_MODULES)


def nic_cluster_policy(request: ManifestRequest) -> str | Refused:
    """Return the policy; refused where no compute NIC is a Mellanox one, which the operator requires."""
    functions = functions_of(request.situation.examination)
    compute = [(nic, _ids(functions, nic)) for nic in compute_nics(request.situation)]
    nics = [nic for nic, ids in compute if ids and ids[0] == CONNECTX.vendor]
    if not nics:
        return Refused("the Network Operator serves NVIDIA NICs (15b3), but this node has none for compute")
    spec: dict[str, Any] = {}
    note = _ofed(request, spec)
    plugin = _plugin_config(request, nics)
    if isinstance(plugin, Refused):
        return plugin
    config, why = plugin
    settings = {
        "image": "k8s-rdma-shared-dev-plugin",
        "repository": REPOSITORY,
        "version": PLUGIN_VERSION,
        "config": Commented(json.dumps(config, indent=2) + "\n", f"A JSON string. {why}"),
    }
    asked = ", ".join(f"rdma/{entry['resourceName']}: 1" for entry in config["configList"])
    spec["rdmaSharedDevicePlugin"] = Commented(
        settings,
        f"Offers the compute NICs to pods. A pod requests them with resources.limits {asked} and needs "
        "securityContext.capabilities.add: [IPC_LOCK] to register memory.",
    )
    name = Commented("nic-cluster-policy", "The operator accepts only one object, with this name.")
    kind = {"apiVersion": "mellanox.com/v1alpha1", "kind": "NicClusterPolicy"}
    policy = {**kind, "metadata": {"name": name}, "spec": spec}
    use = [
        "kubectl apply --dry-run=server --validate=strict --filename FILE",
        "kubectl apply --filename FILE",
    ]
    title = "Network Operator: NicClusterPolicy for GPUDirect RDMA"
    notes = [note, "versions are from Network Operator 26.7.0; use those of the installed release"]
    return join(head(request, title, use, notes), dump(policy))


def _ids(functions: Mapping[str, PciFunction], nic: RdmaDevice) -> tuple[int, int] | None:
    """Return the PCI vendor and device id of a NIC; None: unknown."""
    function = functions.get(known(nic.bdf, ""))
    if function is None or isinstance(function.vendor_id, Unknown) or isinstance(function.device_id, Unknown):
        return None
    return function.vendor_id, function.device_id


# OFED


def _ofed(request: ManifestRequest, spec: dict[str, Any]) -> str:
    """Add the driver's container if this path needs one, and return a note that says why or why not."""
    situation = request.situation
    runs = nic_stack(situation) is NicStack.CONTAINER
    if has_host_ofed(situation):
        return "no ofedDriver: the host has its own OFED, which a container's modules would replace"
    if request.path is not GdrPath.PEERMEM and not runs:
        return "no ofedDriver: the kernel's own NIC driver is enough for DMA-BUF"
    installed = map_known(situation.kubernetes, lambda cluster: cluster.network_operator)
    version = known(map_known(installed, lambda operator: operator.ofed_version), "")
    env = [Commented({"name": name, "value": "true"}, why) for name, why in _env(request)]
    upgrade = {
        "autoUpgrade": True,
        "maxParallelUpgrades": 1,
        "drain": {"enable": True, "force": True, "deleteEmptyDir": True, "timeoutSeconds": 300},
    }
    one_by_one = "One node at a time: replacing OFED ends every RDMA job on the node."
    spec["ofedDriver"] = {
        "image": "doca-driver",
        "repository": REPOSITORY,
        "version": version if _IMAGE_VERSION.fullmatch(version) else OFED_VERSION,
        "env": Commented(env, "The values are strings: true without quotes is rejected."),
        "upgradePolicy": Commented(upgrade, one_by_one),
    }
    return "the MOFED container replaces the kernel's IB core; storage over RDMA must be unmounted first"


def _env(request: ManifestRequest) -> list[tuple[str, str]]:
    """Return the container's variables that are "true", and why."""
    traces = request.situation.examination.driver_container
    storage = () if isinstance(traces, Unknown) else known(traces.storage_modules, ())
    why = (
        "The kernel's own driver returns when the pod ends. Set explicitly: documentation and code have "
        "different defaults."
    )
    env = [("RESTORE_DRIVER_ON_POD_TERMINATION", why)]
    if storage:
        loaded = ", ".join(storage)
        why = f"Loaded on this node: {loaded}. The container refuses to replace the IB core under them."
        env.append(("UNLOAD_STORAGE_MODULES", why))
    if "rpcrdma" in storage:
        env.append(("ENABLE_NFSRDMA", "NFS over RDMA is used here (rpcrdma): load OFED's module for it."))
    devices = request.situation.examination.topology.devices.values()
    others = sorted({driver for nic in devices if (driver := known(nic.driver, "")) in _OTHER_RDMA})
    if others:
        why = f"Loaded on this node: {', '.join(others)}. Their RDMA devices will disappear."
        env.append(("UNLOAD_THIRD_PARTY_RDMA_MODULES", why))
    return env


# The device plugin


def _plugin_config(
    request: ManifestRequest, nics: Iterable[RdmaDevice]
) -> tuple[dict[str, Any], str] | Refused:
    """Return the plugin's config and why its selectors are as they are.

    Vendor and device id are the same on every node of a kind. Interface names are added only where a NIC of
    another role has the same ids. Refused where only unknown names could keep a pod from a port that manages
    NVSwitches: on DGX B200 it has the ids of the compute NICs.
    """
    functions = functions_of(request.situation.examination)
    chosen = list(nics)
    names = {nic.name for nic in chosen}
    rdma = request.situation.examination.node.rdma
    devices, management = (rdma.devices, rdma.management) if isinstance(rdma, RdmaFacts) else ((), ())
    managing = {ids for nic in management if (ids := _ids(functions, nic))}
    others = {ids for nic in devices if nic.name not in names and (ids := _ids(functions, nic))} | managing
    entries: dict[str, dict[str, Any]] = {}
    shared = False
    for nic in chosen:
        layer = known(nic.ports[0].link_layer, "") if nic.ports else ""
        resource = "gdr_ib" if layer == "InfiniBand" else "gdr_roce"
        selectors = entries.setdefault(resource, {"vendors": ["15b3"], "deviceIDs": [], "ifNames": []})
        if (ids := _ids(functions, nic)) is None:
            continue
        selectors["deviceIDs"].append(f"{ids[1]:04x}")
        shared = shared or ids in others
        netdevs = [name for port in nic.ports if _NETDEV.fullmatch(name := known(port.netdev, ""))]
        if ids in managing and not netdevs:
            return Refused(
                f"{nic.name} has no network interface, whose name alone distinguishes it from the ports that "
                "manage NVSwitches, which no pod may get. For InfiniBand, load ib_ipoib first"
            )
        selectors["ifNames"] += netdevs
    needs_names = shared or len(entries) > 1
    config: list[dict[str, Any]] = []
    for resource, selectors in sorted(entries.items()):
        kept = {"vendors": selectors["vendors"], "deviceIDs": sorted(set(selectors["deviceIDs"]))}
        if needs_names and selectors["ifNames"]:
            kept["ifNames"] = selectors["ifNames"]
        config.append({"resourceName": resource, "rdmaHcaMax": _PODS, "selectors": kept})
    if not needs_names:
        why = "Vendor and device id select the compute NICs; no other NIC of this node has the same ids."
    elif all("ifNames" in entry["selectors"] for entry in config):
        why = "ifNames distinguish NICs with the same ids: every node must use these interface names."
    else:
        why = "Other NICs have the same ids, and the interface names are unknown: these may be selected too."
    return {"configList": config}, why
