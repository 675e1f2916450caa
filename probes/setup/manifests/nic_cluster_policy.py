"""The Network Operator's NicClusterPolicy: OFED where nvidia-peermem needs it, and NICs for pods.

Fields: Mellanox/network-operator v26.7.0, api/v1alpha1/nicclusterpolicy_types.go,
docs/mofed-container-env-vars.md and its list of container images; selectors: the README of
Mellanox/k8s-rdma-shared-dev-plugin; modules that the driver's container refuses to replace:
Mellanox/doca-driver-build, entrypoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from probes.base.unknown import Unknown, known
from probes.facts.gpudirect import GdrPath
from probes.facts.pci.functions import PciFunction
from probes.facts.pci.nic_families import CONNECTX, OTHER_VERBS_MODULES, VERBS_MODULES
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.facts.rdma.nic_driver import NicStack
from probes.queries.pcie_paths import functions_of
from probes.setup.manifests.manifest_text import Key, dump, head, join
from probes.setup.manifests.request import (
    ManifestRequest,
    Refused,
    compute_nics,
    has_host_ofed,
    network_operator,
    nic_stack,
)

REPOSITORY = "nvcr.io/nvidia/mellanox"
OFED_VERSION = "doca3.5.0-26.07-0.7.7.0-1"
PLUGIN_VERSION = "network-operator-v26.7.0"
_PODS = 63  # of one node that may share the NICs, as in NVIDIA's examples
_IMAGE_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,80}")
# The kernel allows more, but the plugin's config must match the name as it is written there.
_NETDEV = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}")
# Drivers of RDMA devices whose modules use the IB core, so that the container cannot replace it.
_OTHER_RDMA = (
    *(module for module in VERBS_MODULES if not module.startswith("mlx")),
    *OTHER_VERBS_MODULES,
)


def nic_cluster_policy(request: ManifestRequest) -> str | Refused:
    """Return the policy; refused where no compute NIC is a Mellanox one, which the operator requires."""
    functions = functions_of(request.situation.examination)
    compute = [(nic, _ids(functions, nic)) for nic in compute_nics(request.situation)]
    nics = [nic for nic, ids in compute if ids and ids[0] == CONNECTX.vendor]
    if not nics:
        return Refused("the Network Operator serves NVIDIA NICs (15b3), but this node has none for compute")
    spec: dict[str, Any] = {}
    comments: dict[Key, str] = {}
    note = _ofed(request, spec, comments)
    plugin = _plugin_config(request, nics)
    if isinstance(plugin, Refused):
        return plugin
    config, why = plugin
    spec["rdmaSharedDevicePlugin"] = {
        "image": "k8s-rdma-shared-dev-plugin",
        "repository": REPOSITORY,
        "version": PLUGIN_VERSION,
        "config": json.dumps(config, indent=2) + "\n",
    }
    comments["spec", "rdmaSharedDevicePlugin"] = (
        "Offers the compute NICs to pods. A pod requests them with resources.limits "
        + ", ".join(f"rdma/{entry['resourceName']}: 1" for entry in config["configList"])
        + " and needs securityContext.capabilities.add: [IPC_LOCK] to register memory."
    )
    comments["spec", "rdmaSharedDevicePlugin", "config"] = f"A JSON string. {why}"
    kind = {"apiVersion": "mellanox.com/v1alpha1", "kind": "NicClusterPolicy"}
    policy = {**kind, "metadata": {"name": "nic-cluster-policy"}, "spec": spec}
    comments["metadata", "name"] = "The operator accepts only one object, with this name."
    use = [
        "kubectl apply --dry-run=server --validate=strict --filename FILE",
        "kubectl apply --filename FILE",
    ]
    title = "Network Operator: NicClusterPolicy for GPUDirect RDMA"
    notes = [note, "versions are from Network Operator 26.7.0; use those of the installed release"]
    return join(head(request, title, use, notes), dump(policy, comments))


def _ids(functions: Mapping[str, PciFunction], nic: RdmaDevice) -> tuple[int, int] | None:
    """Return the PCI vendor and device id of a NIC; None: unknown."""
    function = functions.get(known(nic.bdf, ""))
    if function is None or isinstance(function.vendor_id, Unknown) or isinstance(function.device_id, Unknown):
        return None
    return function.vendor_id, function.device_id


# OFED


def _ofed(request: ManifestRequest, spec: dict[str, Any], comments: dict[Key, str]) -> str:
    """Add the driver's container if this path needs one, and return a note that says why or why not."""
    situation = request.situation
    installed = network_operator(situation)
    runs = nic_stack(situation) is NicStack.CONTAINER
    if has_host_ofed(situation):
        return "no ofedDriver: the host has its own OFED, which a container's modules would replace"
    if request.path is not GdrPath.PEERMEM and not runs:
        return "no ofedDriver: the kernel's own NIC driver is enough for DMA-BUF"
    version = known(installed.ofed_version, "") if installed else ""
    version = version if _IMAGE_VERSION.fullmatch(version) else OFED_VERSION
    env = _env(request)
    key: Key = ("spec", "ofedDriver")
    spec["ofedDriver"] = {
        "image": "doca-driver",
        "repository": REPOSITORY,
        "version": version,
        "env": [{"name": name, "value": "true"} for name, _ in env],
        "upgradePolicy": {
            "autoUpgrade": True,
            "maxParallelUpgrades": 1,
            "drain": {"enable": True, "force": True, "deleteEmptyDir": True, "timeoutSeconds": 300},
        },
    }
    variables, upgrade = (*key, "env"), (*key, "upgradePolicy")
    comments.update({(*variables, index): why for index, (_, why) in enumerate(env)})
    comments[variables] = "The values are strings: true without quotes is rejected."
    comments[upgrade] = "One node at a time: replacing OFED ends every RDMA job on the node."
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
