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
    commented,
    compute_nics,
    driver_version,
    dump,
    gpu_operator,
    has_host_ofed,
    head,
    join,
    nic_stack,
    note,
    refused,
)

_FIRST_MODULE_TYPE = "25.3.0"  # kernelModuleType replaced useOpenKernelModules
_OBJECT_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")  # RFC 1123 subdomain, safe in a command


def cluster_policy(request: ManifestRequest) -> str | Refused:
    """Return a merge patch: the CRD requires nine parts of spec, so a short object is rejected."""
    operator = gpu_operator(request.situation)
    name = "" if isinstance(operator, Unknown) else operator.name
    name = name if _OBJECT_NAME.fullmatch(name) else "cluster-policy"
    settings = _settings(request)
    notes, use = [] if request.driver is DriverOwner.HOST else [note("driver-pods-restart")], list[str]()
    if not isinstance(operator, Unknown) and operator.uses_driver_crd is True:
        # NVIDIADriver objects have the driver's settings, and gdrcopy with them.
        notes.append(note("driver-objects"))
        del settings["driver"], settings["gdrcopy"]
        own = _operator_driver(request)
        kind = {"kernelModuleType": own["kernelModuleType"]} if "kernelModuleType" in own else {}
        spec = {**kind, "rdma": own["rdma"], "gdrcopy": {"enabled": True}}
        patch = json.dumps({"spec": spec}, default=lambda commented: commented.value)
        use = [f"kubectl patch nvidiadriver NAME --type merge --patch '{patch}'"]
    top = head(request, "clusterpolicy", notes, use, name=name)
    return join(top, dump({"spec": settings}))


def helm(request: ManifestRequest) -> str | Refused:
    """Return a values file for the chart of the GPU Operator."""
    settings = _settings(request)
    version = driver_version(request.situation)
    numbers = parse_driver_version(version)
    can_stay = request.path is not GdrPath.DMABUF or (numbers is not None and numbers >= FIRST_DMABUF_DRIVER)
    if request.driver is DriverOwner.OPERATOR and version and can_stay:
        settings["driver"]["version"] = commented(version, "driver-version")
    notes = [] if request.driver is DriverOwner.HOST else [note("driver-pods-restart")]
    top = head(request, "helm", notes)
    return join(top, dump(settings))


def _settings(request: ManifestRequest) -> dict[str, Any]:
    """Return the settings that ClusterPolicy.spec and the chart's values have in common."""
    by_host = request.driver is DriverOwner.HOST
    return {
        "driver": _host_driver(request) if by_host else _operator_driver(request),
        "gdrcopy": commented({"enabled": not by_host}, "gdrcopy-on-host" if by_host else "gdrcopy"),
        "devicePlugin": commented({"enabled": True}, "device-plugin"),
        "dcgmExporter": commented({"enabled": True}, "metrics"),
    }


def _host_driver(request: ManifestRequest) -> dict[str, Any]:
    loads_peermem = request.path is GdrPath.PEERMEM
    return {"enabled": commented(False, "driver-of-host-with-peermem" if loads_peermem else "driver-of-host")}


def _operator_driver(request: ManifestRequest) -> dict[str, Any]:
    rdma, owner = _rdma(request), request.driver
    kind = _module_type(request)
    types = {} if kind is None else {"kernelModuleType": kind}
    if isinstance(owner, Unknown):
        return {**types, "rdma": commented(rdma, "driver-unchanged", why=owner.detail or owner)}
    return {"enabled": commented(True, "driver-of-operator"), **types, "rdma": rdma}


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
    host_ofed, loads = has_host_ofed(request.situation), request.path is GdrPath.PEERMEM
    source = "ofed-on-host" if host_ofed else "ofed-in-container"
    if not loads:
        source = "ofed-on-host-unused" if host_ofed else "ofed-unused"
    return {
        "enabled": commented(loads, "loads-peermem" if loads else "no-peermem", path=request.path.value),
        "useHostMofed": commented(host_ofed, source),
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
    if isinstance(rdma := request.situation.examination.node.rdma, Unknown):
        return refused("devices-unknown", why=rdma)
    compute = [(nic, _ids(functions, nic)) for nic in compute_nics(request.situation)]
    nics = [nic for nic, ids in compute if ids and ids[0] == CONNECTX.vendor]
    if not nics:
        return refused("not-mellanox")
    spec: dict[str, Any] = {}
    about_ofed = _ofed(request, spec)
    plugin = _plugin_config(request, nics)
    if isinstance(plugin, Refused):
        return plugin
    config, why = plugin
    settings = {
        "image": "k8s-rdma-shared-dev-plugin",
        "repository": REPOSITORY,
        "version": PLUGIN_VERSION,
        "config": commented(json.dumps(config, indent=2) + "\n", "plugin-config", why=why),
    }
    asked = ", ".join(f"rdma/{entry['resourceName']}: 1" for entry in config["configList"])
    spec["rdmaSharedDevicePlugin"] = commented(settings, "plugin", asked=asked)
    name = commented("nic-cluster-policy", "policy-name")
    kind = {"apiVersion": "mellanox.com/v1alpha1", "kind": "NicClusterPolicy"}
    policy = {**kind, "metadata": {"name": name}, "spec": spec}
    return join(head(request, "nicclusterpolicy", [about_ofed]), dump(policy))


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
        return note("ofed-on-host")
    if request.path is not GdrPath.PEERMEM and not runs:
        return note("ofed-not-needed")
    installed = map_known(situation.kubernetes, lambda cluster: cluster.network_operator)
    version = known(map_known(installed, lambda operator: operator.ofed_version), "")
    env = _env(request)
    upgrade = {
        "autoUpgrade": True,
        "maxParallelUpgrades": 1,
        "drain": {"enable": True, "force": True, "deleteEmptyDir": True, "timeoutSeconds": 300},
    }
    spec["ofedDriver"] = {
        "image": "doca-driver",
        "repository": REPOSITORY,
        "version": version if _IMAGE_VERSION.fullmatch(version) else OFED_VERSION,
        "env": commented(env, "ofed-values"),
        "upgradePolicy": commented(upgrade, "one-by-one"),
    }
    return note("ofed-replaces")


def _env(request: ManifestRequest) -> list[Commented]:
    """Return the container's variables that are "true", and why."""
    traces = request.situation.examination.driver_container
    storage = () if isinstance(traces, Unknown) else known(traces.storage_modules, ())
    devices = request.situation.examination.topology.devices.values()
    others = sorted({driver for nic in devices if (driver := known(nic.driver, "")) in _OTHER_RDMA})
    rows = (
        (True, "RESTORE_DRIVER_ON_POD_TERMINATION", "restores-driver", ()),
        (bool(storage), "UNLOAD_STORAGE_MODULES", "unloads-storage", storage),
        ("rpcrdma" in storage, "ENABLE_NFSRDMA", "nfs-over-rdma", ()),
        (bool(others), "UNLOAD_THIRD_PARTY_RDMA_MODULES", "unloads-others", others),
    )
    return [
        commented({"name": name, "value": "true"}, why, modules=", ".join(modules))
        for is_needed, name, why, modules in rows
        if is_needed
    ]


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
            return refused("no-interface", nic=nic.name)
        selectors["ifNames"] += netdevs
    needs_names = shared or len(entries) > 1
    config: list[dict[str, Any]] = []
    for resource, selectors in sorted(entries.items()):
        kept = {"vendors": selectors["vendors"], "deviceIDs": sorted(set(selectors["deviceIDs"]))}
        if needs_names and selectors["ifNames"]:
            kept["ifNames"] = selectors["ifNames"]
        config.append({"resourceName": resource, "rdmaHcaMax": _PODS, "selectors": kept})
    if not needs_names:
        return {"configList": config}, note("plugin-by-ids")
    is_exact = all("ifNames" in entry["selectors"] for entry in config)
    return {"configList": config}, note("plugin-by-names" if is_exact else "plugin-by-chance")
