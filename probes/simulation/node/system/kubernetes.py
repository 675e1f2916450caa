"""A simulated node in a Kubernetes cluster: kubelet's traces, the operators' markers, and kubectl's answers.

The objects have more fields than gdrtop reads, as in a real cluster: NVIDIA gpu-operator v26.7.0 and Mellanox
network-operator v26.7.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from probes.facts.system.kubernetes import VALIDATIONS
from probes.host.protocol import CommandOutput
from probes.simulation.node.model.description import ClusterDescription
from probes.simulation.node.model.tree import Tree

_GPU_NAMESPACE, _NIC_NAMESPACE = "gpu-operator", "nvidia-network-operator"
_DRIVER_POD, _OFED_POD = "nvidia-driver-daemonset-sim01", "mofed-ubuntu22.04-51a01a7e-ds-sim02"
PEERMEM, DRIVER, OFED = "nvidia-peermem-ctr", "nvidia-driver-ctr", "mofed-container"
_MOFED_READY = "/run/mellanox/drivers/.driver-ready"
# Never shown or recorded: gdrtop drops variables before anything else reads the answer.
_SECRET = [{"name": "HTTPS_PROXY", "value": "http://operator:simulated-secret@proxy.example:3128"}]


def add_kubernetes(tree: Tree, cluster: ClusterDescription) -> None:
    """Add the node's part of the cluster; another one replaces it."""
    tree.add("/var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS=\n")
    tree.add(f"/usr/bin/{cluster.tool}", b"\x7fELF")
    for path in (VALIDATIONS, _MOFED_READY):
        if tree.is_there(path):
            tree.remove(path)
    for name in _markers(cluster):
        tree.add(f"{VALIDATIONS}/{name}", "")
    if cluster.ofed and OFED not in cluster.waiting:
        tree.add(_MOFED_READY, "")
    tree.commands[cluster.tool] = lambda argv, seconds: _kubectl(tree, cluster, argv)


def _markers(cluster: ClusterDescription) -> Iterator[str]:
    if DRIVER in cluster.waiting:
        return
    yield from ("driver-ready", "toolkit-ready", "plugin-ready", "cuda-ready")
    if cluster.driver:
        yield ".driver-ctr-ready"
    if cluster.rdma and not {PEERMEM, OFED} & {*cluster.waiting}:
        yield "nvidia-peermem-ready"


def _kubectl(tree: Tree, cluster: ClusterDescription, argv: tuple[str, ...]) -> str | CommandOutput:
    """Answer `get KIND` and `logs POD`, as JSON and as text."""
    verb, kind, name = (*argv[1:4], "", "", "")[:3]
    if verb == "logs":
        container = _value(argv, "--container")
        return "".join(f"{line}\n" for line in cluster.log) if (container,) == cluster.waiting[:1] else ""
    if kind in ("node", "nodes"):
        node = _node(tree, cluster)
        if kind == "node" and name != tree.description.hostname:
            return CommandOutput(argv, 1, "", f'Error from server (NotFound): nodes "{name}" not found\n')
        return json.dumps(node if kind == "node" else _list([node]))
    if kind == "clusterpolicies.nvidia.com":
        return json.dumps(_list([_cluster_policy(tree, cluster)]))
    if kind == "nicclusterpolicies.mellanox.com" and cluster.ofed:
        return json.dumps(_list([_nic_cluster_policy(cluster)]))
    if kind == "pods":
        return json.dumps(_list(list(_pods(tree, cluster, argv))))
    error = f'error: the server doesn\'t have a resource type "{kind.partition(".")[0]}"\n'
    return CommandOutput(argv, 1, "", error)


def _value(argv: tuple[str, ...], option: str) -> str:
    """Return the word after an option; "" without one."""
    return next((value for word, value in pairwise(argv) if word == option), "")


def _list(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}}


def _node(tree: Tree, cluster: ClusterDescription) -> dict[str, Any]:
    gpus = str(len(tree.gpus))
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": tree.description.hostname,
            "annotations": {"csi.volume.kubernetes.io/nodeid": "{}"},
            "labels": {
                "kubernetes.io/hostname": tree.description.hostname,
                "nvidia.com/gpu.present": "true",
                "nvidia.com/gpu.deploy.driver": "true" if cluster.driver else "pre-installed",
                "network.nvidia.com/operator.mofed.wait": "true" if OFED in cluster.waiting else "false",
                "feature.node.kubernetes.io/pci-15b3.present": "true",
                "feature.node.kubernetes.io/kernel-version.full": tree.description.kernel,
            },
        },
        "status": {
            "addresses": [{"type": "InternalIP", "address": "192.0.2.10"}],
            "allocatable": {
                "cpu": "224",
                "nvidia.com/gpu": "0" if DRIVER in cluster.waiting else gpus,
                "rdma/rdma_shared_device_a": "0" if OFED in cluster.waiting else "63",
            },
        },
    }


def _cluster_policy(tree: Tree, cluster: ClusterDescription) -> dict[str, Any]:
    return {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {
            "name": "cluster-policy",
            "labels": {"app.kubernetes.io/version": "v26.7.0", "helm.sh/chart": "gpu-operator-v26.7.0"},
        },
        "spec": {
            "driver": {
                "enabled": bool(cluster.driver),
                "env": _SECRET,
                "kernelModuleType": "auto",
                "rdma": {"enabled": cluster.rdma, "useHostMofed": cluster.use_host_mofed},
                "useNvidiaDriverCRD": False,
                "version": cluster.driver or tree.description.driver.version,
            },
            "gdrcopy": {"enabled": False},
        },
        "status": {"namespace": _GPU_NAMESPACE, "state": "notReady" if cluster.waiting else "ready"},
    }


def _nic_cluster_policy(cluster: ClusterDescription) -> dict[str, Any]:
    state = "notReady" if OFED in cluster.waiting else "ready"
    return {
        "apiVersion": "mellanox.com/v1alpha1",
        "kind": "NicClusterPolicy",
        "metadata": {"name": "nic-cluster-policy"},
        "spec": {
            "ofedDriver": {"image": "doca-driver", "version": cluster.ofed, "env": _SECRET},
            "rdmaSharedDevicePlugin": {"image": "k8s-rdma-shared-dev-plugin", "config": "{}"},
        },
        "status": {"state": state, "appliedStates": [{"name": "state-OFED", "state": state}]},
    }


def _pods(tree: Tree, cluster: ClusterDescription, argv: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    label = _value(argv, "--selector")
    if label == "app.kubernetes.io/component=nvidia-driver" and cluster.driver:
        containers = [DRIVER, PEERMEM] if cluster.rdma else [DRIVER]
        yield _pod(tree, _DRIVER_POD, _GPU_NAMESPACE, containers, cluster)
    if label == "nvidia.com/ofed-driver" and cluster.ofed:
        yield _pod(tree, _OFED_POD, _NIC_NAMESPACE, [OFED], cluster)


def _pod(
    tree: Tree, name: str, namespace: str, containers: list[str], cluster: ClusterDescription
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeName": tree.description.hostname,
            "containers": [{"name": container, "env": _SECRET} for container in containers],
        },
        "status": {
            "phase": "Running",
            "containerStatuses": [_status(container, cluster) for container in containers],
        },
    }


def _status(name: str, cluster: ClusterDescription) -> dict[str, Any]:
    common = {"name": name, "ready": name not in cluster.waiting}
    if cluster.reason and name in cluster.waiting[:1]:
        waiting = {"waiting": {"reason": cluster.reason, "message": "back-off 5m0s restarting"}}
        terminated = {"terminated": {"exitCode": 1, "reason": "Error"}}
        return common | {"restartCount": 7, "state": waiting, "lastState": terminated}
    running = {"running": {"startedAt": "2026-11-22T03:00:00Z"}}
    return common | {"restartCount": 0, "state": running, "lastState": {}}
